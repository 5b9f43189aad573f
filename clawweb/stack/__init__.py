"""Process and model set-up behind `manage.py up`. Knows no Django model and serves no request."""
