# One image for every part; compose.yaml says which part each container is.
#   docker build --build-arg LOCK=cuda -t clawweb .      (LOCK=cpu where there is no GPU)
FROM python:3.11-slim-bookworm

# The model server compiles when it starts (Triton in C, without a GPU also C++) and loads libnuma
# where there is no GPU; pg_dump and pg_restore make backups.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libnuma1 postgresql-client-15 \
    && rm -rf /var/lib/apt/lists/*

ARG LOCK=cuda
WORKDIR /srv/clawweb
COPY requirements requirements
RUN python requirements/install.py "$LOCK"

COPY . .
# The data folder and what lies in it as volumes of their own: a new volume takes over whose they are.
RUN useradd --create-home --uid 10001 clawweb \
    && mkdir -p /data/adapters /data/models \
    && chown -R clawweb:clawweb /data \
    && chmod -R u=rwX,go= /data

USER clawweb
ENV PATH="/srv/clawweb/.venv/bin:$PATH" PYTHONUNBUFFERED=1 CLAWWEB_VAR=/data
ENTRYPOINT ["python", "manage.py"]
CMD ["part", "web"]
