from setuptools import Distribution, setup


class Platform(Distribution):
    """The compiled module is already there; it makes the wheel one for this platform."""

    def has_ext_modules(self):
        return True


setup(distclass=Platform)
