"""The engines that come with forebay: the default one (OpenVINO paged attention) and `echo` (no model).

They use `forebay.Front` as any other engine would. Nothing here is imported by the other services.
"""

import sys

# `import openvino` tells its makers of each start, over the network, unless that package is not there: it is optional.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: "cannot be imported"
