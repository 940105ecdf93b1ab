# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Decoded images on disk: whole or absent, each in its place, and those of this run."""

from .fault import DOOR, Fault


CACHE, PARTS, DATA, DECODING, LAYOUTS = (
    f"diffusers_dp/data/{name}.py" for name in ("cache", "parts", "images", "decoding", "layouts")
)

IMAGES = (
    Fault(
        "a file that calls itself a picture starts a program",
        LAYOUTS,
        ", formats=FORMATS)",
        ")",
        ("data/test_decoders.py::test_no_way_to_read_images_starts_a_program",),
    ),
    Fault(
        "values of 12 bits are stretched before a declared range holds",
        LAYOUTS,
        "np.asarray(upright(image)) >> (16 - bits)",
        "np.asarray(upright(image))",
        ("data/test_layouts.py::test_jpeg_2000_of_13_bits",),
    ),
    Fault(
        "colours of 16 bits lose their lower bytes",
        LAYOUTS,
        ".astype(np.uint16) << 8 | lower",
        ".astype(np.uint16) * 257",
        ("data/test_layouts.py::test_png_of_16_bits_has_a_white_and_a_declared_range_holds",),
    ),
    Fault(
        "an image of 8 bits is read beside a declared range",
        DECODING,
        "        if layout is None and value_range is not None:\n            raise NotRead(EIGHT_BITS)\n",
        "",
        ("data/test_layouts.py::test_a_record_of_8_bits_beside_a_declared_range_is_unreadable",),
    ),
    Fault(
        "a scan without a declared window is read in one of its own",
        DECODING,
        "            raise NotRead(NO_RANGE)\n        plane",
        "            value_range = (0.0, 4095.0)\n        plane",
        ("data/test_medical.py::TestDicom::test_no_window_no_image_and_none_of_too_many_pixels",),
    ),
    Fault(
        "how many scans are damaged is said aloud",
        DATA,
        '    (cache_dir / READING).write_text(json.dumps(found, sort_keys=True) + "\\n")',
        '    print(found)\n    (cache_dir / READING).write_text(json.dumps(found, sort_keys=True) + "\\n")',
        ("data/test_medical.py::TestFolders::test_a_broken_scan_is_a_blank_and_its_number_stays_private",),
    ),
    Fault(
        "a half-written cache is read",
        CACHE,
        "    if not folder.exists():\n        return None\n",
        '    half = folder.with_name(f".{folder.name}.tmp")\n'
        "    if half.exists():\n"
        '        return {path.stem: np.load(path, mmap_mode="r") for path in half.glob("*.npy")}\n'
        "    if not folder.exists():\n        return None\n",
        ("data/test_image_cache.py::test_a_half_written_cache_is_never_read",),
    ),
    Fault(
        "a cache of other flags is read",
        CACHE,
        "    if found != made_of:\n        return None\n",
        "",
        ("data/test_image_cache.py::test_other_flags_or_files_are_decoded_anew",),
    ),
    Fault(
        "an image that was withdrawn stays in the cache",
        DATA,
        "    return () if status is None else (status.st_size, status.st_mtime_ns)",
        "    return ()",
        ("data/test_image_cache.py::test_other_flags_or_files_are_decoded_anew",),
    ),
    Fault(
        "a damaged header of the cache ends in a traceback",
        CACHE,
        "    except Exception:  #",
        "    except ZeroDivisionError:  #",
        ("data/test_image_cache.py::test_a_damaged_header_is_one_sentence",),
    ),
    Fault(
        "images lie where validation images would",
        PARTS,
        "part.row * int(",
        "part.start * int(",
        ("data/test_image_cache.py::test_the_same_arrays_as_in_memory",),
    ),
    Fault(
        "the last image of a part is the first of the next one",
        PARTS,
        "min(start + length, len(left_out)), row, left_out[start : start + length]",
        "min(start + length + 1, len(left_out)), row, left_out[start : start + length + 1]",
        ("data/test_image_cache.py::test_the_same_arrays_as_in_memory",),
    ),
    Fault(
        "the bar counts the images that are readable",
        DATA,
        "            bar.update(min(length, capacity - bar.n))",
        "            bar.update(int(readable.sum()))",
        ("data/test_image_cache.py::test_nothing_is_said_of_broken_images",),
    ),
    Fault(
        "a bar tells how many images were drawn",
        DOOR,
        "            if sample_rate == 1 and self._units is None:",
        "            if self._units is None:",
        ("privacy/test_sensitive.py::test_a_bar_counts_the_declared_images_and_none_tells_how_many_were_drawn",),
    ),
    Fault(
        "a bar tells how many images of units there are",
        DOOR,
        "            if sample_rate == 1 and self._units is None:",
        "            if sample_rate == 1:",
        ("privacy/test_sensitive.py::test_a_bar_counts_the_declared_images_and_none_tells_how_many_were_drawn",),
    ),
    Fault(
        "what was written to a private map is lost",
        "diffusers_dp/data/picked_images.py",
        "memoryview(held).readonly",
        "not array.flags.writeable",
        ("data/test_image_cache.py::test_what_was_written_to_a_private_map_stays",),
    ),
    Fault(
        "an absent image moves others between training and validation",
        DATA,
        "left_out[named] = is_held_out(digests[named], data.validation_size, facts.capacity)",
        "left_out[named] = is_held_out(digests_of(range(named.sum())), data.validation_size, facts.capacity)",
        ("privacy/test_ids.py::test_a_missing_record_moves_no_other_between_training_and_validation",),
    ),
    Fault(
        "two records of one key go to one place",
        DATA,
        "len(np.unique(digests[named])) < named.sum()",
        "len(np.unique(digests[named])) < 0",
        ("privacy/test_ids.py::test_two_records_of_one_key_are_refused",),
    ),
    Fault(
        "the id of a file is its place in the list",
        "diffusers_dp/data/sources.py",
        "place[in_nfc(name.parts[0])], str(name)) for path, name in zip(self._files, relative)",
        "place[in_nfc(name.parts[0])], i) for i, (path, name) in enumerate(zip(self._files, relative))",
        ("privacy/test_ids.py::test_a_file_that_is_missing_moves_no_other",),
    ),
    Fault(
        "a preview in a service folder is a second record of its image",
        "diffusers_dp/data/folders.py",
        "lower in SERVICE_NAMES or ",
        "",
        ("data/test_class_folders.py::test_copies_in_service_folders_are_no_records",),
    ),
    Fault(
        "a link to an image of the folder is a second record of it",
        "diffusers_dp/data/folders.py",
        "if _counts_here(place, top) or any(",
        "if any(",
        ("data/test_folders.py::test_a_link_counts_unless_what_it_leads_to_does_already",),
    ),
    Fault(
        "a card lets in tables of a service folder",
        "diffusers_dp/data/local_tables.py",
        "if any(map(is_service, path.parts))",
        "if False",
        ("data/test_local_tables.py::test_service_folders_hold_no_tables_and_no_card_lets_them_in",),
    ),
    Fault(
        "test images are trained on where both splits are capitalised",
        "diffusers_dp/data/folders.py",
        "if spelling.fullmatch(name.lower())",
        "if spelling.fullmatch(name)",
        ("data/test_local_tables.py::test_splits_are_never_merged_in_any_spelling",),
    ),
    Fault(
        "a pattern in a path reads another data set",
        "diffusers_dp/data/local_tables.py",
        '_GLOB.sub(r"[\\1]", str(path))',
        "str(path)",
        ("data/test_local_tables.py::test_odd_paths",),
    ),
)
