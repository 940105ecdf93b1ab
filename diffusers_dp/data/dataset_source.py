# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images of a dataset that `datasets` can load, from the Hub or a local folder.

Local folders of Parquet: which files `datasets` is given, by literal paths, and what it may not merge.
"""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UsageError, first_line
from .folders import files_below, is_service, meant_split, split_of
from .records import DatasetRecords, DataSource, ImageSource, MissingSplit, Records, values_of
from .untrusted_tables import check_folder, check_kind, check_named_files, check_saved, root_of
from .values import ID_TYPE, LABEL_TYPE, class_of, listed, places_of


class DatasetSource(ImageSource):
    """A dataset that `datasets` can load and whose columns have declared types: a Hub id or a local folder of Parquet,
    or a `save_to_disk` folder."""

    def __init__(self, data: DataSource):
        self.data = data
        dataset_name = data.dataset_name or ""
        self.ids = "row" if data.id_column is None else "column"
        self.path = Path(os.path.expanduser(dataset_name))
        self.dataset_name = str(self.path) if self.path.exists() else dataset_name
        self._saved = any((self.path / name).is_file() for name in ("dataset_dict.json", "state.json"))
        self._load_kwargs: dict[str, Any] = {}
        self._rows: int | None = None
        self._features: Any = None
        self._files: list[str] = []
        self._split = data.train_split  # as the data set calls it
        if data.is_untrusted:
            check_folder(self.path, "dataset_name")
            if self._saved:
                raise UsageError(
                    f"{dataset_name} holds arrow files; write parquet, by to_parquet.", field="dataset_name"
                )
        with _asked(data):
            if self._saved:
                check_saved(self.path, dataset_name, data.own_files)
                dataset = self._load(Path())
                self._rows, self._features = len(dataset), dataset.features
                self._files = [file["filename"] for file in dataset.cache_files]
            else:
                self._read_metadata()
        if self._features is not None:
            self._check_columns(self._features)

    def count(self) -> int | None:
        return self._rows

    def class_names(self) -> tuple[str, ...] | None:
        return self.data.declared_classes if self._features is None else self._label_set(self._features)

    def records(self, class_names: tuple[str, ...] | None, cache_dir: Path) -> Records:
        with _asked(self.data):
            dataset = self._load(cache_dir)
        features = dataset.features
        self._check_columns(features)
        found = self._label_set(features)
        if found != class_names:
            raise UsageError(
                f"must declare the dataset's label set; add it: {','.join(found or ())}", field="class_names"
            )
        image_column, label_column = self.data.image_column, self._label_column(features)
        own = getattr(features[label_column], "names", None) if label_column else None
        places = None if own is None or class_names is None else places_of(own, class_names)
        return DatasetRecords(
            dataset, image_column, label_column, self.data.id_column, places, class_names,
            str(self.data.dataset_name), self._roots(cache_dir),
        )  # fmt: skip

    def _roots(self, cache_dir: Path) -> tuple[Path, ...] | None:
        """Where the data set's own files lie: in its folder, or in the caches of what comes from the Hub."""
        if not (self.data.own_files or self.data.is_untrusted):
            return None
        if self.path.exists():
            return (self.path.resolve(),)
        from datasets import config
        from huggingface_hub import constants

        caches = (cache_dir / "datasets", Path(config.HF_DATASETS_CACHE), Path(constants.HF_HUB_CACHE))
        return tuple(cache.resolve() for cache in caches)

    def files(self) -> list[Path | str]:
        return [file if "://" in file else Path(file) for file in self._files]

    def ignored(self) -> dict[str, int]:
        found = files_below(self.path) if self.path.is_dir() and not self._saved else []
        read = set(map(os.path.realpath, self._files))
        return dict(Counter(path.suffix.lower() for path in found if os.path.realpath(path) not in read))

    def labels(self, cache_dir: Path) -> Iterator[Any]:
        with _asked(self.data):
            dataset = self._load(cache_dir)
        column = self._label_column(dataset.features)
        if column is None:
            return
        names, declared = getattr(dataset.features[column], "names", None), self.class_names()
        if names and declared:  # as `records` reads them
            names = [declared[place] for place in places_of(names, declared) or ()]
        for part in dataset.select_columns([column]).with_format("arrow").iter(1000):  # read as training reads them
            for value in values_of(part[column]):
                name = class_of(names or (), value)
                yield value if name is None else name

    def _read_metadata(self) -> None:
        """Rows and features from the dataset's own metadata, or, for local parquet, from the footers of the files."""
        import datasets
        import pyarrow.parquet

        self._load_kwargs = {"path": self.dataset_name}
        if self.path.is_dir():
            self._load_kwargs = local_tables(self.path, self.data.dataset_config_name)
        with tempfile.TemporaryDirectory() as scratch:
            builder = datasets.load_dataset_builder(
                name=self.data.dataset_config_name, cache_dir=scratch, **self._load_kwargs
            )
        infos = builder.info.splits or {}
        data_files = getattr(builder.config, "data_files", None) or {}
        everything = [str(path) for paths in data_files.values() for path in paths]
        if self.data.own_files or self.data.is_untrusted:
            check_named_files(everything, self.path, self.dataset_name)
        if self.data.is_untrusted:
            check_kind(builder.name, everything, self.dataset_name)
        self._check_kind(builder.name)
        if self.path.is_dir():
            check_tables(self.path, {str(name): [str(path) for path in paths] for name, paths in data_files.items()})
        split = self._found_split([str(name) for name in (infos or data_files)])
        files = self._files = [str(path) for path in data_files.get(split, [])]
        if "data_files" in self._load_kwargs:  # `datasets` takes the types of all splits from one file
            self._load_kwargs["data_files"] = {split: self._load_kwargs["data_files"][split]}
        self._features = builder.info.features
        if split in infos and infos[split].num_examples:
            self._rows = infos[split].num_examples
        if builder.name == "parquet" and files and all(os.path.isfile(path) for path in files):
            footers = [pyarrow.parquet.ParquetFile(path) for path in files]
            self._rows = sum(footer.metadata.num_rows for footer in footers)
            found = [datasets.Features.from_arrow_schema(footer.schema_arrow) for footer in footers]
            other = next((path for path, features in zip(files, found) if features != found[0]), None)
            if other is not None:
                raise UsageError(
                    f"{other} has other columns or types than {files[0]}; write all files with one schema.",
                    field="dataset_name",
                )
            for path, footer in zip(files, footers):
                _check_types(path, footer.schema_arrow, self._features or found[0])
            self._features = self._features or found[0]

    def _check_kind(self, kind: str) -> None:
        """Refuses data whose types `datasets` takes from all values, and Arrow files, whose texts it checks together:
        one record would change how others are read."""
        if kind == "parquet":
            return
        files = files_below(self.path) if self.path.is_dir() else []
        table = next((path for path in files if path.suffix.lower() in (".csv", ".jsonl")), None)
        if table is not None:
            remedy = f"give --dataset_name {table}"
        elif self.path.exists():
            remedy = "write it as Parquet by to_parquet"
        else:
            remedy = f"run `hf download {self.dataset_name} --repo-type dataset --local-dir DIR`, and name that folder"
        raise UsageError(
            f"{self.data.dataset_name} is read as {kind}, where one record decides how others are read; {remedy}.",
            field="dataset_name",
        )

    def _load(self, cache_dir: Path) -> Any:
        import datasets

        if not self._saved:
            dataset = datasets.load_dataset(
                name=self.data.dataset_config_name, split=self._split,
                cache_dir=str(cache_dir / "datasets"),  # beside our own images, whatever the data set is called
                **self._load_kwargs,
            )  # fmt: skip
            if self._features not in (None, dataset.features):
                raise UsageError(
                    f"{self.data.dataset_name} has other columns or types in another split than in {self._split}; "
                    "write all with one schema, or dataset_info in README.md.",
                    field="dataset_name",
                )
            return dataset
        dataset = datasets.load_from_disk(str(self.path))
        if isinstance(dataset, datasets.DatasetDict):
            return dataset[self._found_split(list(dataset))]
        self._found_split([str(dataset.split or "train")])
        return dataset

    def _found_split(self, known: list[str]) -> str:
        """The split of `--train_split`, by its name or another spelling of it: `val` is `validation`."""
        wanted = self.data.train_split
        found = meant_split(wanted, known) if known else wanted
        if found is None:
            raise MissingSplit(f"'{wanted}' does not exist; there is: {', '.join(known)}.", field="train_split")
        self._split = found
        return self._split

    def _check_columns(self, features: Any) -> None:
        import datasets

        for flag in ("image_column", "label_column", "unit_column", "key_column"):
            column = getattr(self.data, flag)
            if column is not None and column not in features:
                where = f"in {self.data.dataset_name}; there is: {listed(features)}"
                raise UsageError(f"'{column}' does not exist {where}.", field=flag)
        kind = features[self.data.image_column]
        if isinstance(kind, dict):  # as `datasets` stores an image, written by others, who do not call it one
            kind = kind.get("bytes")
        if not isinstance(kind, datasets.Image) and getattr(kind, "dtype", None) not in ("binary", "large_binary"):
            raise UsageError(
                f"'{self.data.image_column}' holds no images; there is: {listed(features)}.", field="image_column"
            )

        column, field = self.data.id_column, "unit_column" if self.data.unit_column else "key_column"
        if column is not None and not re.fullmatch(ID_TYPE, str(getattr(features[column], "dtype", ""))):
            raise UsageError(f"'{column}' holds neither integers nor text; there is: {listed(features)}.", field=field)

    def _label_column(self, features: Any) -> str | None:
        return self.data.label_column or ("label" if "label" in features else None)

    def _label_set(self, features: Any) -> tuple[str, ...] | None:
        """The declared label set, else that of the `ClassLabel`; both must name the same classes. Whether labels can
        be read at all is a matter of the column's type."""
        import datasets

        declared, column = self.data.class_names, self._label_column(features)
        if column is None:
            if declared is not None:
                raise UsageError(
                    f"must name the labels of the declared classes; there is: {listed(features)}.",
                    field="label_column",
                )
            return None
        kind = features[column]
        plain = isinstance(kind, datasets.Value) and re.fullmatch(LABEL_TYPE, kind.dtype)
        if not plain and not isinstance(kind, datasets.ClassLabel):
            raise UsageError(
                f"'{column}' holds neither integers nor text nor a ClassLabel, but {kind}; there is: "
                f"{listed(features)}.",
                field="label_column",
            )
        own = getattr(kind, "names", None)
        if declared is None and own is None:
            raise UsageError(
                f"must declare the label set, for the column '{column}' does not tell it.", field="class_names"
            )
        if own is not None and declared is not None and places_of(own, declared) is None:
            raise UsageError(
                f"contradicts column '{column}', which has: {listed(own)}; name these.", field="class_names"
            )
        return declared if declared is not None else tuple(own or ())


def _check_types(path: str, stored: Any, read: Any) -> None:
    """Refuses types that `datasets` converts, as a card asks: it converts the values of all records together."""
    import datasets

    wanted = read.arrow_schema
    if twice := [name for name in stored.names if stored.names.count(name) > 1]:
        raise UsageError(f"{path} has two columns '{twice[0]}'; rename one.", field="dataset_name")
    for name, kind in read.items() if wanted != stored else ():
        same = name in stored.names and wanted.field(name).type == stored.field(name).type
        if not isinstance(kind, datasets.Image) and (not same or isinstance(kind, datasets.ClassLabel)):
            raise UsageError(
                f"'{name}' of {path} is converted to {wanted.field(name).type} on reading, where one value can make "
                "all records unreadable; write columns as dataset_info in README.md has them, and categories as text.",
                field="dataset_name",
            )


@contextmanager
def _asked(data: DataSource) -> Iterator[None]:
    """Mutes the bars and logs of `datasets` and `huggingface_hub`, which count images and show values, and the request
    by which `datasets` tells its makers of each read, of a local folder too. Turns any failure of theirs to find or
    read a dataset into one sentence."""
    import datasets
    import huggingface_hub.utils.logging as hub_logging

    bars, level = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    hub_level, counted = hub_logging.get_verbosity(), datasets.config.HF_UPDATE_DOWNLOAD_COUNTS
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    hub_logging.set_verbosity_error()
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        which = f" --dataset_config_name {data.dataset_config_name}" if data.dataset_config_name else ""
        raise UsageError(
            f"{data.dataset_name}{which} could not be opened ({first_line(error)}); give a Hub id that can be reached "
            "from here, or a local dataset folder.",
            field="dataset_name",
        ) from None
    finally:
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = counted
        datasets.logging.set_verbosity(level)
        hub_logging.set_verbosity(hub_level)
        if not bars:
            datasets.enable_progress_bars()


_CARDS = ("README.md", ".huggingface.yaml", "dataset_infos.json")  # where `datasets` looks for what belongs to a split
_UNREADABLE = re.compile(r"::|://|\$\w|\$\{")  # `datasets` splits such paths, or fills in variables
_GLOB = re.compile(r"([*?\[])")


def local_tables(folder: Path, config_name: str | None) -> dict[str, Any]:
    """
    How `datasets` is told to read a local folder: a folder of Parquet without a card by the literal paths of its
    files. By itself `datasets` would take `[`, `?` and `*` in a path for patterns, and read or merge other folders.

    Args:
        folder (`Path`): Folder of the data set.
        config_name (`str`, *optional*): A configuration, which only a card can have.

    Raises:
        UsageError: `datasets` cannot read this path.
    """
    odd = _UNREADABLE.search(str(folder))
    declared = config_name is not None or any(_declares_files(folder / name) for name in _CARDS)
    if odd or (declared and _GLOB.search(str(folder))):
        what = odd[0] if odd else "[, ? or *"
        raise UsageError(
            f"{folder} has {what} in its path, where `datasets` cannot read it; rename the folder.",
            field="dataset_name",
        )
    tables = [path for path in files_below(folder) if path.suffix.lower() == ".parquet"]
    if declared or not tables:
        return {"path": str(folder)}
    splits: dict[str, list[str]] = {}
    for path in tables:
        splits.setdefault(_split_of_file(path.relative_to(folder)) or "", []).append(_GLOB.sub(r"[\1]", str(path)))
    unnamed = splits.pop("", [])  # as `datasets` does it, they are the split `train` only where no file has a split
    return {"path": "parquet", "data_files": splits or {"train": unnamed}}


def check_tables(folder: Path, data_files: dict[str, list[str]]) -> None:
    """
    Refuses files of service folders, whatever a card says, and splits that were merged.

    Args:
        folder (`Path`): Folder of the data set.
        data_files (`dict`): The files of each split, as `datasets` found them.

    Raises:
        UsageError: There are some.
    """
    for paths in data_files.values():
        local = [Path(os.path.relpath(path, root)) for path in paths for root in [root_of(path, folder)] if root]
        service = next((path for path in local if any(map(is_service, path.parts))), None)
        if service is not None:
            raise UsageError(
                f"{folder} names {service}, which a system or a program made and holds no records; remove it.",
                field="dataset_name",
            )
        found = {split: path for path in local for split in [_split_of_folders(path)] if split}
        if len(found) > 1:
            parents = sorted(str(folder / path.parent) for path in found.values())
            raise UsageError(
                f"{folder} holds folders that look like splits, and its card merges them; give "
                f"--dataset_name {parents[-1]}, or mend the card.",
                field="dataset_name",
            )


def _declares_files(card: Path) -> bool:
    """Whether a card says which files there are, or what their columns mean."""
    if not card.is_file() or card.suffix != ".md":
        return card.is_file()
    text = card.read_text(encoding="utf-8", errors="replace")
    return re.search(r"^(configs|dataset_info):", text, re.MULTILINE) is not None


def _split_of_file(path: Path) -> str | None:
    """By the name of a shard, which can be any split's; else by the folders, then by the file's own name."""
    shard = re.fullmatch(r"(\w+)-\d{5}-of-\d{5}.*\.parquet", path.name)
    named = _split_of_folders(path) or split_of(path.stem)
    return (split_of(shard[1]) or shard[1]) if shard and not named else named


def _split_of_folders(path: Path) -> str | None:
    return next((split for split in map(split_of, reversed(path.parent.parts)) if split), None)
