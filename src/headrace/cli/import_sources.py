"""What ``headrace import`` reads: files, directories, stdin, and objects of a store, which are copied for the time.

Rows are read twice, first for what they have in common, so what comes through a pipe or from a store is put into a
temporary directory. It is gone when the import ends; a producer is named after the content, so the next run goes on.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from headrace.cli import output
from headrace.cli.output import UsageError
from headrace.errors import HeadraceError, ObjectMissing, StoreUnavailable

if TYPE_CHECKING:
    from headrace.storage.objects import ObjectInfo, Objects

STDIN = "-"
#: Services that hold objects, as Headrace's own store may be on.
_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")
_WILDCARDS = re.compile(r"\*\*/?|\*|\?|[^*?]+")


def collect_files(sources: Sequence[str], file_format: str | None, directory: Path) -> Mapping[Path, str]:
    """The files to read, with the names that people know them by; copies go to a directory."""
    from headrace.client.importer.reader import find_files

    names: dict[Path, str] = {}
    for number, source in enumerate(sources):
        target = directory / str(number)
        if source == STDIN:
            names[_spool_stdin(target, file_format)] = "stdin"
        elif "://" not in source:
            names |= {path: str(path) for path in find_files([source])}
        elif source.startswith("file:"):
            names |= {path: str(path) for path in find_files(_expand_file_url(source))}
        else:
            names |= _download(source, file_format, target)
    return names


def _spool_stdin(target: Path, file_format: str | None) -> Path:
    if file_format is None:
        raise UsageError("Say what comes in on stdin: --format csv, tsv, jsonl, json or parquet.")
    path = target.with_suffix(f".{file_format}")
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


def _expand_file_url(url: str) -> list[str]:
    """The path of a file URL, or the files that match it as a pattern."""
    parts = urlsplit(url.replace("?", "%3F"), allow_fragments=False)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UsageError(f"{url!r} should be file:///an/absolute/path")
    path = unquote(parts.path)
    if not re.search(r"[*?]", path):
        return [path]
    paths = sorted(str(match) for match in Path("/").glob(path.lstrip("/")) if match.is_file())
    if not paths:
        raise UsageError(f"no file matches {url}")
    return paths


def _download(url: str, file_format: str | None, target: Path) -> dict[Path, str]:
    """Copies of an object, of those below a prefix, or of those that match a pattern, in the order of their keys."""
    from headrace.storage.objects import Objects

    scheme, _, rest = url.partition("://")
    bucket, _, pattern = rest.partition("/")
    if scheme not in _SCHEMES:
        raise UsageError(f"{url} is on no store that is known: {', '.join(map('{}://'.format, ('file', *_SCHEMES)))}")
    if not bucket or not pattern.strip("/"):
        raise UsageError(f"{url} names no object: it should be {scheme}://BUCKET/KEY, a prefix, or a pattern")
    root = f"{scheme}://{bucket}"
    with _explain_failures(url):
        store = Objects.open(root)
        objects = _find_objects(store, pattern)
        if not objects:
            raise UsageError(f"there is no object {url}, and none below it")
        if file_format is None:
            objects = _drop_unknown_formats(objects, url)
        return _copy_objects(store, root, objects, target)


@contextmanager
def _explain_failures(url: str) -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        cause = error.facts.get("cause")
        hint = "; credentials come from the environment" if error.facts.get("reason") == "denied" else ""
        raise StoreUnavailable(f"cannot read {url}: {cause}{hint}", **error.facts) from error


def _drop_unknown_formats(objects: Sequence[ObjectInfo], url: str) -> list[ObjectInfo]:
    from headrace.client.importer.reader import has_format

    importable = [entry for entry in objects if has_format(PurePosixPath(entry.key))]
    if not importable:
        raise UsageError(f"{url}: the names do not tell the format; pass --format csv, tsv, jsonl, json or parquet")
    return importable


def _copy_objects(store: Objects, root: str, objects: Sequence[ObjectInfo], target: Path) -> dict[Path, str]:
    names = {}
    done, total = 0, sum(entry.bytes for entry in objects)
    with output.progress_bar("downloading") as report:
        for number, entry in enumerate(objects):
            path = target / f"{number:06}" / PurePosixPath(entry.key).name
            path.parent.mkdir(parents=True)
            with path.open("wb") as file:
                store.download(entry.key, entry.bytes, file)
            if store.head(entry.key) != entry:
                raise HeadraceError(f"{root}/{entry.key} changed while it was read: run the import again")
            names[path] = f"{root}/{entry.key}"
            done += entry.bytes
            report(done, total)
    return names


def _find_objects(store: Objects, pattern: str) -> list[ObjectInfo]:
    literal = re.split(r"[*?]", pattern)[0]
    if literal == pattern:
        try:
            return [store.head(pattern.strip("/"))]
        except ObjectMissing:
            return sorted(store.list(pattern.strip("/")))
    matches = _compile_pattern(pattern).fullmatch
    return sorted(entry for entry in store.list(literal.rpartition("/")[0]) if matches(entry.key))


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern of keys: ``*`` and ``?`` stand for characters of one part, ``**`` for any number of parts."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(parts.get(part[0], re.escape(part[0])) for part in _WILDCARDS.finditer(pattern)))
