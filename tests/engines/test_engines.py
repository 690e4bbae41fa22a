"""Embeds the same rows with `kivu batch` and with each engine for data, and kills workers in the middle.

    TEST_BUNDLE=.kivu/bundles/minilm TEST_KIVU=target/debug/kivu TEST_PACKAGE=FOLDER \
      python tests/engines/test_engines.py DuckDB Daft Ray

TEST_PACKAGE has the folder `kivuml` with the native module. The arguments are the classes below. TEST_ROWS is the
number of rows, 2,000 by default.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as parquet

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/data"
KIVU = os.environ["TEST_KIVU"]
COUNT = int(os.environ.get("TEST_ROWS", 2000))
FILES = 8
WORDS = "ferry leaves seven cat sat mat train Hamburg late snow bug billing praise Fähre größer 猫 🐈 the a of in".split()
# Processor time that a process with the model uses before it is killed, so that it is in the middle.
BUSY_S = 0.4
TIMEOUT_S = 600
# Ray's own limit for its start, which a busy machine may exceed.
SLOW_START = "timed out during startup"
ENGINE = {
    "PYTHONPATH": os.environ["TEST_PACKAGE"],
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "DO_NOT_TRACK": "true",
}


def table(count):
    """Rows with an id, a text and a number; some texts are missing or empty."""
    source = random.Random(38)
    texts = [f"{' '.join(source.choices(WORDS, k=source.randint(2, 16)))} {number}" for number in range(count)]
    texts[3], texts[count // 2] = None, ""
    numbers = [None if number % 3 else 2**53 + number for number in range(count)]
    return pa.table({"id": range(count), "text": texts, "number": pa.array(numbers, pa.int64())})


def write(rows, folder):
    folder.mkdir()
    size = -(-len(rows) // FILES)
    for part in range(FILES):
        parquet.write_table(rows.slice(part * size, size), folder / f"part-{part}.parquet")


def read(path):
    """The rows in the order of their ids, with the same types for all engines."""
    found = dataset.dataset(path).to_table().sort_by("id")
    return found.select(["id", "text", "number", "embedding"]).cast(
        pa.schema([("id", pa.int64()), ("text", pa.string()), ("number", pa.int64()), ("embedding", pa.list_(pa.float32()))])
    ).combine_chunks()


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Workers:
    """The processes of this test that have opened a bundle."""

    def __init__(self, bundle):
        self.weights = str(bundle / "weights.bin")
        self.first_seen = {}

    def busy(self):
        """Those that have used the model for a while."""
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            with contextlib.suppress(OSError):
                if self.weights in Path(f"/proc/{pid}/maps").read_text():
                    used = processor_seconds(pid)
                    if used - self.first_seen.setdefault(pid, used) > BUSY_S:
                        yield pid


class Engine:
    """The tests of an engine, whose example is `script`."""

    script = ""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name).resolve()
        # A bundle of its own, by which the workers are recognized.
        cls.bundle = cls.folder / "bundle"
        shutil.copytree(os.environ["TEST_BUNDLE"], cls.bundle)
        rows = table(COUNT)
        write(rows, cls.folder / "in")
        parquet.write_table(rows, cls.folder / "in.parquet")
        batch = [KIVU, "batch", cls.folder / "in.parquet", cls.folder / "batch.parquet", "--model", cls.bundle]
        subprocess.run(batch, check=True, capture_output=True)
        cls.expected = read(cls.folder / "batch.parquet")

    def command(self, output):
        return [sys.executable, EXAMPLES / self.script, self.bundle, self.folder / "in", output]

    def run_with_kills(self, output, kills):
        """Runs the example; each of `kills` gets a busy worker's process id, and returns the one to kill."""
        workers, kills = Workers(self.bundle), [*kills]
        with tempfile.TemporaryFile("w+") as log:
            engine = subprocess.Popen(
                [*map(str, self.command(output))], cwd=self.folder, env=os.environ | ENGINE, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )
            try:
                limit = time.monotonic() + TIMEOUT_S
                while engine.poll() is None:
                    self.assertLess(time.monotonic(), limit, f"{self.script} does not end")
                    for pid in workers.busy() if kills else ():
                        os.kill(kills.pop(0)(pid), signal.SIGKILL)
                        workers.first_seen.clear()
                        break
                    time.sleep(0.05)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(engine.pid, signal.SIGKILL)
            log.seek(0)
            found = log.read()
            self.assertTrue(kills == [] or SLOW_START in found, f"no worker could be killed\n{found}")
            return engine.returncode, found

    def assert_complete(self, output, columns=("id", "text", "number", "embedding")):
        """The rows are those of `kivu batch`, once each, with the same bits."""
        self.assertTrue(read(output).select(columns).equals(self.expected.select(columns)))


class ReplacesFolder(Engine):
    """An engine whose output is a folder, which is replaced."""

    def test_an_output_that_has_the_input_is_refused(self):
        done = subprocess.run([*map(str, self.command(self.folder))], env=os.environ | ENGINE, capture_output=True, text=True)
        self.assertIn("expected OUTPUT to be another folder", done.stderr)
        self.assertEqual(len(list((self.folder / "in").iterdir())), FILES)


class OneProcess(Engine):
    """An engine with all work in its process."""

    def test_rows_equal_batch_after_a_kill_and_a_second_run(self):
        output = self.folder / "out.parquet"
        code, log = self.run_with_kills(output, [lambda pid: pid])
        self.assertEqual(code, -signal.SIGKILL, log)
        code, log = self.run_with_kills(output, [])
        self.assertEqual(code, 0, log)
        self.assert_complete(output)


class DuckDB(OneProcess, unittest.TestCase):
    script = "embed_duckdb.py"


class Daft(OneProcess, ReplacesFolder, unittest.TestCase):
    script = "embed_daft.py"


class Ray(ReplacesFolder, unittest.TestCase):
    script = "embed_ray.py"

    def test_rows_equal_batch_although_a_worker_is_killed(self):
        output = self.folder / "out"
        for _ in range(3):
            code, log = self.run_with_kills(output, [lambda pid: pid])
            if SLOW_START not in log:
                break
        self.assertEqual(code, 0, log)
        self.assert_complete(output)


class Spark(ReplacesFolder, unittest.TestCase):
    """Two executors, which are processes of their own."""

    script = "embed_spark.py"

    def command(self, output):
        submit = Path(sys.executable).with_name("spark-submit")
        return [submit, "--master", "local-cluster[2,1,1024]", *super().command(output)[1:]]

    def test_rows_equal_batch_although_a_worker_and_an_executor_are_killed(self):
        output = self.folder / "out"
        # Spark's daemon starts the Python processes, and the executor the daemon.
        code, log = self.run_with_kills(output, [lambda pid: pid, lambda pid: parent(parent(pid))])
        self.assertEqual(code, 0, log)
        self.assert_complete(output)

    def test_pandas_rows_equal_batch(self):
        """The variant on the page `docs/batch.md`."""
        page = (ROOT / "docs/batch.md").read_text()
        (function,) = re.findall(r"```python\n(def add_vectors.*?)```", page, re.S)
        example = (EXAMPLES / self.script).read_text()
        changed = re.sub(r"    def add_vectors\(.*?\n\n", re.sub("(?m)^(?=.)", "    ", function) + "\n", example, flags=re.S)
        changed = changed.replace("mapInArrow", "mapInPandas")
        script = self.folder / "pandas_variant.py"
        script.write_text(changed)
        output = self.folder / "out-pandas"
        command = [sys.executable, script, self.bundle, self.folder / "in", output]
        done = subprocess.run(command, env=os.environ | ENGINE, capture_output=True, text=True, timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        # pandas has large integers next to nulls as floats.
        self.assert_complete(output, ["id", "text", "embedding"])


class Columns(unittest.TestCase):
    """`kivuml.arrow` without an engine."""

    def run_code(self, code):
        environment = os.environ | ENGINE | {"BUNDLE": os.environ["TEST_BUNDLE"]}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_arrays_slices_and_missing_texts(self):
        found = self.run_code("""
import json, os, pickle
import numpy as np, pyarrow as pa
from kivuml import load
from kivuml.arrow import Embedder

model = load(os.environ["BUNDLE"])
embed = Embedder(os.environ["BUNDLE"], threads=1)
texts = pa.array(["left out", "a", None, "", "b"]).slice(1)
column = embed(texts)
expected = model.encode(["a", "b"])
chunks = embed(pa.chunked_array([["a"], ["b"]], pa.large_string()))
int8 = Embedder(os.environ["BUNDLE"], {"precision": "int8", "dimensions": 32})(pa.array(["a"]))
# Copies in this process have the same model.
copy = pickle.loads(pickle.dumps(embed))
print(json.dumps([
    str(column.type), column.is_null().to_pylist(),
    np.array([column[0].as_py(), column[3].as_py()], np.float32).tobytes() == expected.tobytes(),
    chunks.flatten().to_numpy().tobytes() == expected.tobytes(),
    embed(pa.nulls(2)).to_pylist(), len(embed(pa.array([], pa.string()))),
    str(int8.type), len(int8[0]), copy.model is embed.model,
    str(Embedder(os.environ["BUNDLE"], {"precision": "int8"})(pa.nulls(2)).type),
    Embedder(os.environ["BUNDLE"], {"prompt": "b "})(pa.array(["a"]))[0].as_py() == model.encode("a", prompt="b ").tolist(),
]))
""")
        self.assertEqual(
            found,
            ["list<item: float>", [False, True, True, False], True, True, [None, None], 0, "list<item: int8>", 32, True,
             "list<item: int8>", True],
        )

    def test_bad_input(self):
        found = self.run_code("""
import json, os
import pyarrow as pa
from kivuml.arrow import Embedder

embed = Embedder(os.environ["BUNDLE"])
def refusal(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
print(json.dumps([
    refusal(lambda: embed(["a"])), refusal(lambda: embed(pa.array([7]))),
    refusal(lambda: Embedder("a", thread=1)), refusal(lambda: Embedder(7)),
    refusal(lambda: Embedder("a", {"dimension": 8})), refusal(lambda: Embedder("a", {"precision": "int4"})),
]))
""")
        self.assertEqual(found, [
            "TypeError: expected `texts` to be an Arrow array, but found `list`",
            "TypeError: expected `texts` to be an Arrow array of strings, but found `int64`",
            "TypeError: got an unexpected keyword argument 'thread'",
            "TypeError: expected `name` to be a string or a path, but found `int`",
            "TypeError: got an unexpected keyword argument 'dimension'",
            "InvalidError: expected `precision` among `float32`, `int8`, `uint8`, `binary`, `ubinary`, but found 'int4'",
        ])


if __name__ == "__main__":
    unittest.main()
