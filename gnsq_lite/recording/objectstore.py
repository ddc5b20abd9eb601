"""Requests of a log to an object store (S3 and compatible servers, Google's, Azure's).

The library is obstore, which has the same calls for all three kinds of stores.  A log's fence needs obstore's put mode
that only creates objects.  Settings come from the environment variables of the store's own tools, and from the options
``nsq.storage.NAME``.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from gnsq_lite.errors import MissingExtra, OptionError
from gnsq_lite.recording.errors import RecordingError
from gnsq_lite.recording.location import without_password

#: Default settings of a store's HTTP client.
_CLIENT = {"timeout": "30s", "connect_timeout": "10s"}
#: Names of ``nsq.storage.*`` as obstore writes them: settings of the HTTP client, and settings of the stores.
_CLIENT_NAMES = frozenset(
    re.findall(r"\w+", "allow_http allow_invalid_certificates timeout connect_timeout proxy_url proxy_ca_certificate")
)
_STORE_NAMES = frozenset(
    re.findall(
        r"\w+",
        """access_key_id secret_access_key session_token region endpoint virtual_hosted_style_request skip_signature
        unsigned_payload imdsv1_fallback request_payer conditional_put server_side_encryption sse_kms_key_id
        service_account service_account_key service_account_path application_credentials account_name account_key
        client_id client_secret tenant_id sas_key token use_emulator use_azure_cli use_fabric_endpoint
        federated_token_file msi_endpoint msi_resource_id object_id instance_metadata""",
    )
)
#: Settings, or environment variables without their prefix, that make the cloud's metadata service unnecessary.
_CREDENTIALS = frozenset(
    re.findall(
        r"\w+",
        """access_key_id web_identity_token_file container_credentials_relative_uri container_credentials_full_uri
        skip_signature service_account service_account_key service_account_path application_credentials account_key
        sas_key token client_secret federated_token_file use_azure_cli use_emulator""",
    )
)
_VARIABLES = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_", "az": "AZURE_", "abfs": "AZURE_", "abfss": "AZURE_"}
#: Pattern of a store's answer in XML, and the host of the cloud's metadata service, which gives credentials.
_ANSWER = re.compile(r"(<\?xml|<Error).*", re.DOTALL)
#: Pattern of a store's answer if the bucket is missing: S3's, Google's and Azure's.  A retry cannot help.
_NO_BUCKET = re.compile("NoSuchBucket|bucket does not exist|ContainerNotFound")
_METADATA = "//169.254.169.254/"
_NO_CREDENTIALS = "the options and the environment have no credentials, and the cloud's metadata service gave none"


def settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options ``nsq.storage.NAME`` with obstore's names.  *given* has the names without the prefix.

    Spark passes names in lower case.  Raises OptionError for an unknown name, or for http:// without allowHttp.
    """
    names = {name.replace("_", ""): name for name in _CLIENT_NAMES | _STORE_NAMES}
    found = {}
    for name, text in given.items():
        plain = name.replace("_", "").lower()
        if plain not in names:
            near = difflib.get_close_matches(plain, names, n=1, cutoff=0.0)
            head, *rest = names[near[0]].split("_")
            meant = "nsq.storage." + head + "".join(word.capitalize() for word in rest)
            raise OptionError(f"nsq.storage.{name}", "<hidden>", f"is unknown; did you mean {meant}?")
        found[names[plain]] = text
    if found.get("endpoint", "").startswith("http://") and found.get("allow_http", "").lower() != "true":
        raise OptionError("nsq.storage.endpoint", "<hidden>", "is http://, which needs nsq.storage.allowHttp=true")
    return found


class ObjectStore:
    """The objects below a URL.

    Every method raises OSError if the store fails, and RecordingError without the bucket or after a fork.

    :meth:`names`, :meth:`read`, :meth:`write` and :meth:`remove` implement ``files.Blobs``.
    """

    #: Process that opened the first store.  In its forked children, obstore's threads are missing and requests hang.
    _process = 0

    def __init__(self, url: str, given: Mapping[str, str], prefix: str = "") -> None:
        self.url, self._given, self._prefix = url, dict(given), prefix
        self._store: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}

    def below(self, prefix: str) -> ObjectStore:
        """Return a store of the objects whose names begin with *prefix*."""
        found = ObjectStore(self.url, self._given, self._prefix + prefix)
        found._store = self._opened()
        return found

    def _opened(self) -> Any:
        ObjectStore._process = ObjectStore._process or os.getpid()
        if ObjectStore._process != os.getpid():
            raise RecordingError(
                f"{self.url} cannot be read or written: process {ObjectStore._process} opened an object store and then"
                f" forked this process {os.getpid()}, in which obstore does not answer; open recordings after the fork"
            )
        if self._store is None:
            try:
                from obstore import store as stores
            except ImportError as error:
                raise MissingExtra("a recording on an object store", "spark-storage", "obstore") from error
            client = {**_CLIENT, **{name: text for name, text in self._given.items() if name in _CLIENT_NAMES}}
            config = {name: text for name, text in self._given.items() if name not in _CLIENT_NAMES}
            if config.pop("instance_metadata", "true").lower() == "false":
                self._require_credentials()
            retry = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}
            try:
                from_url: Any = stores.from_url
                self._store = from_url(self.url, config=config, client_options=client, retry_config=retry)
            except Exception as error:
                why = f"the object store refuses its settings: {_message_of(error)}"
                raise OptionError("recording", self.url, why) from None
        return self._store

    def _require_credentials(self) -> None:
        """Raise OptionError if the client would request credentials from the cloud's metadata service."""
        prefix = _VARIABLES[self.url.partition(":")[0].lower()]
        variables = [
            name.removeprefix(prefix).removeprefix("STORAGE_").lower() for name in os.environ if name.startswith(prefix)
        ]
        if _CREDENTIALS.isdisjoint([*self._given, *variables]):
            why = f"needs credentials in the options or in the environment ({prefix}...)"
            raise OptionError("nsq.storage.instanceMetadata", "false", why)

    @contextlib.contextmanager
    def _errors(self, name: str, *, creates: bool = False) -> Iterator[None]:
        from obstore import exceptions

        where = f"{self.url}/{self._prefix}{name}"
        try:  # "from None" hides the cause: Spark would show the cause, with the store's whole answer
            yield
        except (exceptions.NotFoundError, FileNotFoundError) as error:
            if _NO_BUCKET.search(str(error)):
                raise RecordingError(f"{self.url} cannot be opened: the store has no such bucket") from None
            raise FileNotFoundError(f"{where} does not exist: {_message_of(error)}") from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise PermissionError(f"{where}: {_message_of(error)}") from None
        except exceptions.BaseError as error:
            if _NO_BUCKET.search(str(error)):  # a list request
                raise RecordingError(f"{self.url} cannot be opened: the store has no such bucket") from None
            if creates and isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
                raise FileExistsError(f"{where} exists") from None
            raise OSError(f"{where}: {_message_of(error)}") from None

    def check(self) -> None:
        """Raise MissingExtra or OptionError if the store's settings cannot work.  Sends no request to the store."""
        self._opened()

    def create(self, name: str, data: bytes) -> None:
        """Create *name* atomically and durably.  Raises FileExistsError.  After another OSError *name* may exist."""
        import obstore

        store = self._opened()
        with self._errors(name, creates=True):
            obstore.put(store, self._prefix + name, data, mode="create", use_multipart=False)

    def write(self, name: str, data: bytes) -> None:
        """Replace the content of *name*."""
        import obstore

        store = self._opened()
        with self._errors(name):
            obstore.put(store, self._prefix + name, data, use_multipart=False)

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """Return at most *size* bytes (None: all bytes) from the offset *at* on.  Raises FileNotFoundError."""
        import obstore

        store = self._opened()
        with self._errors(name):
            found: bytes
            if size is None:
                found = obstore.get(store, self._prefix + name).bytes().to_bytes()[at:]
                return found
            try:
                found = obstore.get_range(store, self._prefix + name, start=at, length=size).to_bytes()
            except obstore.exceptions.GenericError:  # obstore's error if the range begins after the object's end
                if obstore.head(store, self._prefix + name)["size"] > at:
                    raise
                found = b""
        return found

    def sizes(self, after: str = "") -> dict[str, int]:
        """Return the sizes in bytes of the objects with names after *after*, as a dict sorted by name."""
        import obstore

        store = self._opened()
        found: dict[str, int] = {}
        offset = self._prefix + after if after else None
        with self._errors(""):
            for page in obstore.list(store, self._prefix or None, offset=offset, chunk_size=1000):
                found.update({str(one["path"]).removeprefix(self._prefix): int(one["size"]) for one in page})
        return dict(sorted(found.items()))

    def folders(self) -> list[str]:
        """Return the names of the folders directly below the URL and the prefix, sorted."""
        import obstore

        store = self._opened()
        with self._errors(""):
            found = obstore.list_with_delimiter(store, self._prefix or None)["common_prefixes"]
        return sorted(str(one).rstrip("/").removeprefix(self._prefix) for one in found)

    def entries(self) -> list[str]:
        """Return the names of the folders and objects directly below the URL and the prefix."""
        import obstore

        store = self._opened()
        with self._errors(""):
            found = obstore.list_with_delimiter(store, self._prefix or None)
        paths = [*found["common_prefixes"], *(str(one["path"]) for one in found["objects"])]
        names = [str(path).rstrip("/").removeprefix(self._prefix) for path in paths]
        return [name for name in names if name]

    def names(self) -> list[str]:
        """Return the existing names, sorted."""
        return list(self.sizes())

    def remove(self, *names: str) -> None:
        """Remove the objects *names*, with one request if possible.  A missing object is no error."""
        import obstore

        store = self._opened()
        try:
            with self._errors(names[0] if names else ""):
                obstore.delete(store, [self._prefix + name for name in names])
        except FileNotFoundError:  # some stores stop at a missing object
            for name in names if len(names) > 1 else ():
                self.remove(name)


def _message_of(error: Exception) -> str:
    """Return obstore's text of *error*, without the debug output.

    Keeps only the code and the message of the store's answer, because the rest may repeat the request and its token.
    """
    text = without_password(str(error).partition("\n\nDebug source")[0])
    answer = _ANSWER.search(text)
    if answer is not None:
        parts = [re.search(f"<{tag}>(.*?)</{tag}>", answer[0], re.DOTALL) for tag in ("Code", "Message")]
        text = text[: answer.start()] + ": ".join(found[1] for found in parts if found)
    return f"{text}; {_NO_CREDENTIALS}" if _METADATA in text else text
