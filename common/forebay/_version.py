"""The version of forebay, read by the build and shown in `/server_info`."""

__version__ = "0.1.0"
