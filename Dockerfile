# The stepc command and package, beside the PyTorch that they are built for:
#   docker build -t stepc .
#   docker run --rm -v "$PWD":/work stepc train run.toml
# The first stage compiles (10 to 30 minutes on two cores); of it the image keeps the wheel alone.
FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates make python3 python3-dev python3-venv
WORKDIR /stepc
COPY . .
RUN make wheel

FROM debian:12
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
  && rm -rf /var/lib/apt/lists/*
COPY --from=build /stepc/dist/ /tmp/dist/
RUN python3 -m venv /opt/stepc && /opt/stepc/bin/pip install --no-cache-dir /tmp/dist/stepc-*.whl && rm -rf /tmp/dist
ENV PATH=/opt/stepc/bin:$PATH
WORKDIR /work
ENTRYPOINT ["stepc"]
