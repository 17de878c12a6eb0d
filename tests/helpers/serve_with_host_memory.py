"""A service whose device memory is host memory: `cuda_ipc` end to end without a GPU.

`python -m tests.helpers.serve_with_host_memory FILE`, with settings in the environment.
"""

import sys

from app.config import load_settings
from app.devices import Devices
from app.main import create_app
from app.server import bind, make_server
from tests.helpers.host_memory import UUID, HostMemory


def main() -> None:
    """Serve until a signal."""
    path = sys.argv[1]
    devices = Devices(lambda: (UUID,), lambda _, nbytes: HostMemory.allocate(path, nbytes))
    settings = load_settings()
    app = create_app(settings, devices)
    sockets = bind(settings.server)
    host, port = sockets[-1].getsockname()
    server = make_server(app, settings.server)
    server.on_started = lambda: print(f"ready at http://{host}:{port}", flush=True)
    server.run(sockets)


if __name__ == "__main__":
    main()
