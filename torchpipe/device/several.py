"""The former place of ``torchpipe.xla.several_devices``, kept for one version."""

from torchpipe.xla.several_devices import DeviceStream, SeveralDevices

__all__ = ["DeviceStream", "SeveralDevices"]
