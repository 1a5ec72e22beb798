# The product's image, in two names over the same layers:
#
#   docker build -t inferencecache:0.1.0 .                                  every subcommand; the Pod names which
#   docker build --target subscriber -t inferencecache-subscriber:0.1.0 .   the sidecar's: an injected container has
#                                                                           arguments and no command
#
# Both start from nothing: Python, the packages of requirements-image.lock, the product, and the libraries that these
# load. There is no shell and no package manager, and nothing is written at run time, so a read-only root will do.
# BASE is where Python and the libraries are taken from: any Debian that has Python 3.11 or newer, with venv and pip.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONHASHSEED=0
WORKDIR /src
COPY requirements-image.lock ./
RUN python3 -m venv /opt/inferencecache \
 && /opt/inferencecache/bin/pip install --quiet --no-deps --no-compile --require-hashes -r requirements-image.lock
# What makes the product's own wheel, at the versions that tests use.
COPY requirements.lock ./
RUN awk '/^[a-z]/ { wanted = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/ } wanted' \
    requirements.lock >tools.lock \
 && python3 -m venv /opt/tools \
 && /opt/tools/bin/pip install --quiet --no-deps --require-hashes -r tools.lock
COPY pyproject.toml README.md LICENSE ./
COPY inferencecache inferencecache
# What the server says of itself when it starts; left out if nobody says.
ARG COMMIT=
RUN [ -z "$COMMIT" ] || echo "$COMMIT" >inferencecache/COMMIT
RUN /opt/tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /opt/wheels . \
 && /opt/inferencecache/bin/pip install --quiet --no-deps --no-compile --no-index /opt/wheels/*.whl \
 && /opt/inferencecache/bin/pip uninstall --quiet --yes pip setuptools
COPY hack/image/rootfs.py /usr/local/lib/rootfs.py
RUN python3 /usr/local/lib/rootfs.py /rootfs /opt/inferencecache

FROM scratch AS inferencecache
COPY --from=build /rootfs /
ENV PATH=/opt/inferencecache/bin LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["inferencecache"]

FROM inferencecache AS subscriber
ENTRYPOINT ["inferencecache", "kvevent-subscriber"]

# What `docker build .` makes without a target.
FROM inferencecache
