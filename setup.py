"""Package definition.  The version's only home is ``gnsq_lite/version.py``."""

import re
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "gnsq_lite/version.py").read_text(), re.M)
assert VERSION is not None

CLI = ["click>=8.1", "rich>=13.0"]
#: What contributors need: the extras whose tests run without Spark, and the tools of tox.ini.
DEV = [
    "gnsq_lite[cli,cron,django,django-tasks,msgspec,opentelemetry,prometheus,protobuf,pydantic,recording,sentry,statsd]",
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "cryptography", "docutils", "eventlet", "mypy", "ruff"),
    *("types-gevent", "types-docutils", "flask", "gunicorn", "opentelemetry-sdk", "psycopg[binary]", "setuptools"),
    "sqlalchemy",
]

setup(
    name="gnsq_lite",
    version=VERSION.group(1),
    description="A synchronous NSQ client for Python on gevent and threads",
    long_description=(HERE / "README.rst").read_text(encoding="utf-8"),
    long_description_content_type="text/x-rst",
    license="MIT",
    python_requires=">=3.10",
    packages=find_packages(include=["gnsq_lite", "gnsq_lite.*"]),
    package_data={
        "gnsq_lite": ["py.typed"],
        "gnsq_lite._core": ["*.pyi"],
        "gnsq_lite.contrib": ["*.json", "*.yaml"],
        "gnsq_lite.supervise": ["*.html"],
    },
    # Where no compiler is, the install goes on without: twin.py has the same in Python.
    ext_modules=[
        Extension(
            "gnsq_lite._core.native",
            [f"gnsq_lite/_core/{name}.c" for name in ("native", "drain", "lists", "rows", "packing", "exchange")],
            depends=["gnsq_lite/_core/native.h"],
            optional=True,
        ),
    ],
    install_requires=["cramjam>=2.8.4", "gevent>=23.9", "python-snappy>=0.7", "urllib3>=2.0.2,<3"],
    extras_require={
        "dev": DEV,
        "cli": CLI,
        "django": ["Django>=4.2"],
        "django-tasks": ["django-tasks>=0.9"],  # Django 6 has them itself
        "cron": ["cronsim>=2.5"],
        "prometheus": ["prometheus-client>=0.19"],
        "opentelemetry": ["opentelemetry-api>=1.20"],
        "sentry": ["sentry-sdk>=2.10"],
        "msgspec": ["msgspec>=0.18"],
        "protobuf": ["protobuf>=4.21"],
        "pydantic": ["pydantic>=2.5"],
        "statsd": ["statsd>=4.0"],
        "plot": ["matplotlib>=3.7"],
        "recording": ["pyarrow>=17.0"],
        "spark": ["pyspark>=4.0", "pyarrow>=17.0"],
        "spark-storage": ["obstore>=0.8"],  # recordings on object stores
        "spark-platform": ["pyarrow>=17.0"],  # where Spark brings its own pyspark: Databricks, EMR, Dataproc
    },
    entry_points={
        "console_scripts": ["gnsq-lite = gnsq_lite.__main__:main"],
        "pytest11": ["gnsq_lite = gnsq_lite.contrib.pytest_plugin"],
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Programming Language :: Python :: 3.15",
        "Topic :: System :: Networking",
        "Typing :: Typed",
    ],
    zip_safe=False,
)
