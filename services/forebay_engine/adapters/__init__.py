"""Engines that are not ours, linked to forebay: one file an engine, each started by that engine's own plug-in point."""
