# mmprep as a sidecar. No model is downloaded at build time; mount one, or serve the embedded demo.
#
#   docker build -t mmprep .                          CPU (torch without CUDA, about 1 GB smaller)
#   docker build -t mmprep:cuda --build-arg VARIANT=cuda .

FROM python:3.11-slim AS build

# The compiler is for the optional kernels; it stays in this stage.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

ARG VARIANT=cpu
# Where torch without CUDA is found; a mirror may stand in.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG PREFIX=/opt/mmprep
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

RUN python -m venv "$PREFIX"

# Dependencies first: this layer is rebuilt only when these two files change. A local version
# ("2.14.1+cpu") satisfies the pin and sorts above the plain one, so the CPU index wins where given.
WORKDIR /src
COPY pyproject.toml constraints.txt ./
RUN case "$VARIANT" in cpu) index="--extra-index-url $TORCH_INDEX"; extras=server ;; cuda) index=""; extras=server,cuda ;; *) echo "VARIANT is cpu or cuda" >&2; exit 1 ;; esac; python -c "import sys, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; print(*project['dependencies'], *(r for e in sys.argv[1].split(',') for r in project['optional-dependencies'][e]), sep='\n')" "$extras" > requirements.txt && "$PREFIX/bin/python" -m pip install $index --requirement requirements.txt --constraint constraints.txt

COPY setup.py README.md LICENSE ./
COPY app app
COPY processors processors
COPY transport transport
RUN "$PREFIX/bin/python" -m pip install --no-deps .


FROM python:3.11-slim

ARG PREFIX=/opt/mmprep
COPY --from=build "$PREFIX" "$PREFIX"

# Inside a container the loopback address reaches nobody; publish the port with care, or set keys
# (MMPREP_SERVER__API_KEYS); a unix socket (MMPREP_SERVER__UDS) is served beside the port.
ENV PATH="$PREFIX/bin:$PATH" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 MMPREP_SERVER__HOST=0.0.0.0 MMPREP_SERVER__PORT=8000

RUN useradd --system --uid 10001 --user-group --no-create-home --home-dir /nonexistent mmprep
USER 10001:10001
WORKDIR /
EXPOSE 8000
STOPSIGNAL SIGTERM

HEALTHCHECK --interval=10s --timeout=3s --start-period=120s --retries=3 CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['MMPREP_SERVER__PORT'] + '/livez', timeout=2).close()"]

ENTRYPOINT ["mmprep"]
CMD ["serve"]
