"""Django's settings, made from clawweb.config. Reads no environment itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dj_database_url
from csp.constants import SELF
from django.core.exceptions import ImproperlyConfigured

from clawweb.config import config, listed

_config = config()
BASE_DIR = Path(__file__).resolve().parent.parent
VAR = _config.var


@contextmanager
def _data_folder() -> Iterator[None]:
    """Says which setting names a folder that is not ours to use."""
    try:
        yield
    except OSError as error:
        said = f"The data folder {VAR} cannot be used: {error.strerror} ({error.filename})."
        raise ImproperlyConfigured(f"{said} CLAWWEB_VAR names another.") from error


with _data_folder():
    SECRET_KEY = _config.secret("secret_key", _config.secret_key)
SECRET_KEY_FALLBACKS = [_config.old_secret_key] if _config.old_secret_key else []
DEBUG = _config.debug
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]", _config.host_in_urls]
ALLOWED_HOSTS += listed(_config.allowed_hosts)

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "csp",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.usersessions",
    "ninja",  # serves /api/docs from its own files, so that no CDN is needed
    "clawweb",
]
MIDDLEWARE = [
    "clawweb.middleware.request_id",
    "clawweb.middleware.programs",
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "clawweb.middleware.TimeZone",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "clawweb.middleware.Waiting",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]
ROOT_URLCONF = "clawweb.urls"
ASGI_APPLICATION = "clawweb.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def _database() -> dict[str, Any]:
    if _config.database_url:
        if _config.database_url.partition("://")[0] not in ("postgres", "postgresql", "pgsql"):
            raise ImproperlyConfigured(
                "CLAWWEB_DATABASE_URL begins with postgres://. Without it SQLite is used, in the "
                "data folder (CLAWWEB_VAR), as several processes need it."
            )
        try:
            parsed = dj_database_url.parse(_config.database_url, conn_max_age=0)
        except ValueError:
            raise ImproperlyConfigured(
                "CLAWWEB_DATABASE_URL cannot be read; what is not a letter or digit in a name or "
                "password stands there as %XX."
            ) from None
        # Threads keep theirs (clawweb/orm.py): one that a restart of the server cut is found first.
        return {**parsed, "CONN_HEALTH_CHECKS": True}
    with _data_folder():
        VAR.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": VAR / "clawweb.sqlite3",
        "CONN_MAX_AGE": 0,
        # IMMEDIATE takes the write lock at BEGIN: with the default mode four writers meet thousands
        # of "database is locked" errors that no timeout heals (docs/decisions/0003).
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
        },
        "TEST": {"NAME": VAR / "test.sqlite3"},
    }


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "clawweb.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]
LOGIN_URL = "/signin/"
LOGIN_REDIRECT_URL = "/chat/"
LOGOUT_REDIRECT_URL = "/signin/"

# allauth keeps second factors, open browsers and accounts elsewhere; its pages, its mails, its
# limits (per process) and its own ways to sign up are not used (docs/decisions/0019).
ACCOUNT_ADAPTER = "clawweb.views.allauth_hooks.Accounts"
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_RATE_LIMITS = False
ACCOUNT_REAUTHENTICATION_TIMEOUT = 300  # seconds that a password given again is good for
MFA_ADAPTER = "clawweb.views.allauth_hooks.SecondFactors"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_RECOVERY_CODES_SHOW_ONCE = True
MFA_TOTP_TOLERANCE = 1  # a clock may be 30 s off; a code is good once all the same
MFA_TOTP_ISSUER = "clawweb"
MFA_ALLOW_UNVERIFIED_EMAIL = True  # addresses are of no account here
SOCIALACCOUNT_ADAPTER = "clawweb.views.single_sign_on.Elsewhere"
SOCIALACCOUNT_REAUTHENTICATION_REQUIRED = True
SOCIALACCOUNT_QUERY_EMAIL = False

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "clawweb.events.Layer",
        # Nudges only: losing one costs a fetch, so they expire soon and the queue may be short.
        "CONFIG": {
            # Longer than the layer's blocking read.
            "hosts": [{"address": _config.redis, "socket_timeout": 30}],
            "expiry": 30,
            "capacity": 200,
            "prefix": "layer",
        },
    }
}

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("de", "Deutsch")]  # each in its own words
LANGUAGE_COOKIE_AGE = 365 * 24 * 3600
LANGUAGE_COOKIE_SAMESITE = "Lax"
USE_TZ = True
TIME_ZONE = "UTC"
LOCALE_PATHS = [BASE_DIR / "clawweb" / "locale"]

STATIC_URL = "/static/"
STATIC_ROOT = VAR / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "clawweb.static_files.PlotlyFinder",
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "clawweb.static_files.HashedStorage"
        if (STATIC_ROOT / "staticfiles.json").exists()
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024 * 1024
if _config.trusted_proxy:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    SECURE_SSL_REDIRECT = True
    SECURE_REDIRECT_EXEMPT = [r"^(livez|readyz|metrics)$"]  # asked from inside
    SECURE_HSTS_SECONDS = _config.hsts_seconds
# Of other hosts on the domain we know nothing, so neither they nor a browser's own list are named.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:", "blob:"],  # plotly draws and exports through both
        "connect-src": [SELF],
        "object-src": ["'none'"],
        "base-uri": [SELF],
        "form-action": [SELF],
        "frame-ancestors": ["'none'"],
    }
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"ours": {"()": "clawweb.logs.make_formatter"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "ours"}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {
        "httpx": {"level": "WARNING"},
        "uvicorn": {"handlers": ["console"], "propagate": False},  # instead of its own
        "uvicorn.access": {"handlers": [], "propagate": False},  # its lines would hold addresses
    },
}
