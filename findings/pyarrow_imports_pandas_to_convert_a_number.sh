#!/bin/sh
# pyarrow 26.0.1 imports pandas 3.1.1, if it is installed, before it converts its first Python object, also for
# pa.scalar(1) and for a number that a compute function gets.  The import takes 0.2 s of CPU and 35 MB.  Arrays over
# buffers, their elements, compute functions of arrays, IPC and Parquet files do without it.
# Depends on it: gnsq_lite/arrow_values.py, by which recorders and Spark's planners do not load pandas.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1 pandas==3.1.1
cat > "$folder/program.py" <<'PROGRAM'
import sys

import pyarrow as pa
import pyarrow.compute as pc

numbers = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer((5).to_bytes(8, "little") * 2)])
steps = {
    "buffers": lambda: numbers[0].as_py() + pc.sum(pc.add(numbers, numbers)).as_py(),
    "files": lambda: __import__("pyarrow.parquet").parquet.write_table(pa.table([numbers], ["n"]), sys.argv[2]),
    "scalar": lambda: pa.scalar(1),
    "compute": lambda: pc.add(numbers, 1),
    "array": lambda: pa.array([1]),
}
steps[sys.argv[1]]()
print(sys.argv[1], "pandas" in sys.modules)
PROGRAM
seen=$(for step in buffers files scalar compute array; do
    "$folder/venv/bin/python" "$folder/program.py" "$step" "$folder/n.parquet"
done)
echo "$seen"
[ "$seen" = "buffers False
files False
scalar True
compute True
array True" ]
