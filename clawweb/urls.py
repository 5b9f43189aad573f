"""Routes."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth import views as auth
from django.contrib.auth.decorators import login_required
from django.urls import path, re_path
from django.views.decorators.cache import never_cache
from django.views.i18n import JavaScriptCatalog, set_language

from clawweb.api import health, metrics, openai
from clawweb.api.rest import api
from clawweb.views import (
    accounts,
    agent,
    charts,
    chat,
    data,
    inspector,
    jobs,
    review,
    security,
    single_sign_on,
    versions,
)
from clawweb.views import second_factor as factor
from clawweb.views.problems import posted_from

handler400 = "clawweb.views.problems.unreadable"
handler403 = "clawweb.views.problems.forbidden"
handler404 = "clawweb.views.problems.not_found"
handler500 = "clawweb.views.problems.crashed"

pages = [
    path("", chat.home, name="home"),
    path("chat/", chat.chat, name="chat"),
    path("chat/<str:session_id>/", chat.chat, name="chat_session"),
    path("agent/", agent.agent, name="agent"),
    path("agent/erase/", agent.erase, name="erase_learning"),
    path("sessions/", inspector.sessions, name="sessions"),
    path("sessions/views/", inspector.saved_views, name="session_views"),
    path("sessions/<str:session_id>/", inspector.session, name="session"),
    re_path(
        r"^sessions/(?P<session_id>[^/]+)/download\.(?P<kind>jsonl|json)$",
        inspector.download,
        name="session_file",
    ),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/<str:job_id>/", jobs.job, name="job"),
    path("jobs/<str:job_id>/series/", charts.job_series, name="job_series"),
    path("jobs/<str:job_id>/metrics.csv", charts.job_csv, name="job_csv"),
    path("adapters/", versions.versions, name="adapters"),
    path("review/", review.review, name="review"),
    path("review/<str:session_id>/", review.review_session, name="review_session"),
    path("data/", data.data, name="data"),
    path("data/import/", data.bring_in, name="data_import"),
    path("settings/", accounts.settings, name="settings"),
    path("settings/effective/", accounts.effective_settings, name="effective"),
    path("settings/delete/", accounts.delete_account, name="delete_account"),
    path("settings/consent/", accounts.set_consent, name="set_consent"),
    path("settings/asking/", accounts.set_asking, name="set_asking"),
    path("settings/keys/", accounts.make_key, name="make_key"),
    path("settings/keys/<int:key_id>/revoke/", accounts.revoke_key, name="revoke_key"),
    path("settings/users/", accounts.add_user, name="add_user"),
    path("settings/security/", security.security, name="security"),
    path("settings/security/browsers/end/", security.end_others, name="end_others"),
    path(
        "settings/security/browsers/<int:browser_id>/end/", security.end_browser, name="end_browser"
    ),
    path("signin/", accounts.SignInView.as_view(), name="signin"),
    path("signup/", accounts.sign_up, name="signup"),
    path("signin/sso/", single_sign_on.start, name="sso"),
    path("signin/sso/callback/", single_sign_on.callback, name="sso_callback"),
    path("settings/sso/connect/", single_sign_on.connect, name="sso_connect"),
    path("settings/sso/disconnect/", single_sign_on.disconnect, name="sso_disconnect"),
    path("signin/code/", factor.AskForCode.as_view(), name="mfa_authenticate"),
    path("signin/<str:token>/", accounts.signin_link, name="signin_link"),
    path("signout/", posted_from("home")(auth.LogoutView.as_view()), name="signout"),
    path("password/", accounts.PasswordView.as_view(), name="password"),
    path("language/", set_language, name="language"),
    path("jsi18n/", JavaScriptCatalog.as_view(packages=["clawweb"]), name="jsi18n"),
]
# How one signs in, by the names that allauth looks for.
steps = [
    path("signin/", accounts.SignInView.as_view(), name="account_login"),
    path("settings/security/", security.security, name="mfa_index"),
    *(
        path(f"settings/{route}/", never_cache(login_required(view.as_view())), name=name)
        for route, view, name in (
            ("confirm", factor.ConfirmByPassword, "account_reauthenticate"),
            ("confirm/code", factor.ConfirmByCode, "mfa_reauthenticate"),
            ("second-factor", factor.SetUp, "mfa_activate_totp"),
            ("second-factor/remove", factor.Remove, "mfa_deactivate_totp"),
            ("second-factor/codes", factor.RecoveryCodes, "mfa_view_recovery_codes"),
            ("second-factor/codes/new", factor.NewRecoveryCodes, "mfa_generate_recovery_codes"),
        )
    ),
]
# Pieces of pages, fetched again when a nudge says that they changed.
parts = [
    path("parts/agent/", chat.agent_part, name="part_agent"),
    path("parts/learned/", agent.learned_part, name="part_learned"),
    path("parts/rechecks/", agent.rechecks_part, name="part_rechecks"),
    path("parts/forget/", agent.forget_part, name="part_forget"),
    path("parts/ratings/", agent.ratings_part, name="part_ratings"),
    path("parts/earlier/<str:turn_id>/", chat.earlier_part, name="part_earlier"),
    path("parts/sessions/", chat.sessions_part, name="part_sessions"),
    path("parts/transfers/", data.transfers_part, name="part_transfers"),
    path("parts/jobs/", jobs.jobs_part, name="part_jobs"),
    path("parts/system/", jobs.system_part, name="part_system"),
    path("parts/sessions/<str:session_id>/map/", inspector.map_part, name="part_map"),
    path("parts/turns/<str:turn_id>/", inspector.turn_part, name="part_turn"),
    path("parts/replays/<str:comparison_id>/", inspector.replay_part, name="part_replay"),
    path("parts/adapters/", versions.versions_part, name="part_adapters"),
    path("parts/adapters/served/", versions.served_part, name="part_served"),
    path("parts/jobs/<str:job_id>/head/", jobs.job_part, {"part": "head"}, name="part_job_head"),
    path("parts/jobs/<str:job_id>/tail/", jobs.job_part, {"part": "tail"}, name="part_job_tail"),
]
urlpatterns = [
    *pages,
    *steps,
    *parts,
    path("v1/chat/completions", openai.chat_completions),
    path("v1/models", openai.models),
    path("v1/models/<str:name>", openai.model),
    re_path(r"^v1(?:/.*)?$", openai.unknown),
    path("chat/completions", openai.without_version),
    path("models", openai.without_version),
    path("api/", api.urls),
    path("livez", health.livez),
    path("readyz", health.readyz),
    path("metrics", metrics.metrics),
    path("admin/", admin.site.urls),
]
