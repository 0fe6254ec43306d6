"""What pyproject.toml cannot say: the tag of the wheel.

The C core uses nothing of Python and is loaded with ctypes, so one wheel per platform serves every
version of Python: py3-none-PLATFORM.
"""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"bdist_wheel": PlatformWheel})
