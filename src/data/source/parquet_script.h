// The Python program of a ParquetProcess.
#pragma once

namespace stepc {

// One batch of rows is in memory at a time, and the pages that it comes from. Nothing of the current directory is
// imported, and the memory that a damaged file may ask for is bounded.
inline constexpr const char* kParquetScript = R"py(
import sys
if sys.path and sys.path[0] in ("", "."):
    del sys.path[0]
import json, math, resource

BATCH_ROWS = 64
MOST_BYTES = 4 << 30  # beyond what the imports take
out, requests = sys.stdout.buffer, sys.stdin.buffer


def say(kind, text=""):
    out.write(kind.encode() + text.encode("utf-8", "replace") + b"\n")


def one_line(error):
    return (str(error) or type(error).__name__).splitlines()[0]


class NotRead(Exception):
    pass


def refuse(value):
    raise NotRead(f"a value of type {type(value).__name__} is not read; convert the column to .jsonl")


def finite(value):
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, (list, tuple)) else value


encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=refuse).encode


def say_value(value):
    if isinstance(value, bytes):
        out.write(b"s%d\n" % len(value) + value)
        return
    try:
        say("v", encode(value))
    except ValueError:
        say("v", encode(finite(value)))


def is_text(kind):
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    views = getattr(pa.types, "is_string_view", lambda kind: False)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or views(kind)


def is_chat(kind):
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_struct(kind.value_type)


class File:
    def __init__(self, path):
        self.path = path
        self.parquet = pq.ParquetFile(path, memory_map=False, pre_buffer=False)

    def layout(self):
        columns = [[field.name, "text" if is_text(field.type) else "chat" if is_chat(field.type) else "other",
                    str(field.type)] for field in self.parquet.schema_arrow]
        return {"columns": columns, "groups": [self.group(i) for i in range(self.parquet.metadata.num_row_groups)]}

    def group(self, index):
        group = self.parquet.metadata.row_group(index)
        chunks = [group.column(i) for i in range(group.num_columns)]
        starts = [min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset) for chunk in chunks]
        return [group.num_rows, [[start, chunk.total_compressed_size] for start, chunk in zip(starts, chunks)]]

    def values(self, column, group):
        row = 0
        for batch in self.parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=[column], use_threads=False):
            try:
                batch.validate(full=True)  # the text's UTF-8 too
            except pa.ArrowInvalid as error:
                return say("d", f"{row} {batch.num_rows} {one_line(error)}")
            row += batch.num_rows
            array = batch.column(batch.schema.get_field_index(column))
            if is_text(array.type):
                array = array.cast(pa.large_string()).cast(pa.large_binary())  # as it is, without a detour over str
            for value in array.to_pylist():
                say_value(value)
        say(".")


def main():
    pa.set_memory_pool(pa.system_memory_pool())
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    with open("/proc/self/statm") as sizes:
        taken = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, taken + MOST_BYTES))
    say("r")
    out.flush()
    file = None
    for line in requests:
        request = json.loads(line)
        try:
            if file is None or file.path != request["path"]:
                file = None
                file = File(request["path"])
            if "column" in request:
                file.values(request["column"], request["group"])
            else:
                say("i", json.dumps(file.layout()))
        except NotRead as error:
            say("n", one_line(error))
        except (Exception, MemoryError) as error:
            say("e", one_line(error))
        out.flush()


try:
    import pyarrow as pa, pyarrow.parquet as pq
except Exception as error:
    say("m", one_line(error))
else:
    main()
)py";

}  // namespace stepc
