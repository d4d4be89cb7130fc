"""The engines that come with forebay: the default one (OpenVINO paged attention) and `echo` (no model).

They use `forebay.Front` as any other engine would. Nothing here is imported by the other services.
"""
