"""Batch jobs whose vectors go to PostgreSQL, S3 Vectors and OpenSearch.

    TEST_KIVU=… TEST_BUNDLE=… TEST_CLASSIFIER=… python tests/s3/test_sinks.py

`test_uploads.py` has the function with a sink.
"""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import pyarrow
import pyarrow.parquet

import harness
from harness import kivu, wait_for
from sinks import PASSWORD, PROGRAMS, OpenSearch, Postgres, TlsProxy, VectorIndexes

BUNDLE = Path(os.environ["TEST_BUNDLE"])
CLASSIFIER = Path(os.environ["TEST_CLASSIFIER"])
ROWS = 1000


def texts(count):
    return [{"id": number, "text": f"text number {number}", "title": f"title {number}"} for number in range(count)]


class Base(unittest.TestCase):
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="kivu-sinks-"))
        cls.env = {"KIVU_ONNXRUNTIME": os.environ["TEST_ONNXRUNTIME"], "KIVU_HOME": str(cls.folder / "home"),
                   "PGPASSWORD": PASSWORD}
        # The vectors that a file gets.
        source = cls.folder / "expected.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in texts(ROWS)))
        kivu("", "batch", source, cls.folder / "vectors.jsonl", "--model", BUNDLE, env=cls.env)
        rows = map(json.loads, (cls.folder / "vectors.jsonl").read_text().splitlines())
        cls.expected = {str(row["id"]): row["embedding"] for row in rows}
        cls.dimension = len(cls.expected["0"])

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def source(self, rows, name="docs.jsonl"):
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        path = folder / name
        if name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif name.endswith(".csv"):
            text = io.StringIO()
            writer = csv.DictWriter(text, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
            path.write_text(text.getvalue())
        else:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path

    def job(self, source, url, *arguments, check=True, env=(), model=BUNDLE):
        """The process, the rows that were not stored, and the report."""
        done = kivu("", "batch", source, url, "--model", model, *arguments, check=check, env=self.env | dict(env))
        failed = source.with_name(f"failed-{source.name}")
        report = failed.with_name(f"{failed.name}.report.json")
        return done, failed, json.loads(report.read_text()) if report.exists() else None

    def refusal(self, source, url, *arguments, env=(), model=BUNDLE):
        done, failed, report = self.job(source, url, *arguments, check=False, env=env, model=model)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertNotIn(PASSWORD, done.stderr + json.dumps(report))
        self.assertFalse(failed.exists())
        return done.stderr

    def start(self, source, url, *arguments):
        """A job that saves after each chunk of rows."""
        return subprocess.Popen(
            [harness.KIVU, "batch", source, url, "--model", BUNDLE, *arguments], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=os.environ | self.env | {"KIVU_BATCH__SAVE_MS": "1", "AWS_ENDPOINT_URL": self.endpoint()},
        )

    def endpoint(self):
        return ""

    def assert_equal_vectors(self, found):
        self.assertEqual(found.keys(), self.expected.keys())
        for key, vector in found.items():
            for value, expected in zip(vector, self.expected[key], strict=True):
                self.assertAlmostEqual(value, expected, 6)


@unittest.skipUnless(PROGRAMS, "no PostgreSQL for this Python")
class ToPostgres(Base):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.postgres = Postgres()
        cls.postgres.sql("CREATE EXTENSION vector")

    @classmethod
    def tearDownClass(cls):
        cls.postgres.stop()
        super().tearDownClass()

    def table(self, name, columns="title text"):
        self.postgres.sql(f"DROP TABLE IF EXISTS {name}",
                          f"CREATE TABLE {name} (id bigint PRIMARY KEY, embedding vector({self.dimension}) NOT NULL, {columns})")
        return self.postgres.url(name)

    def stored(self, name):
        rows = self.postgres.sql(f"SELECT id, embedding FROM {name}").splitlines()
        return {key: json.loads(vector) for key, vector in (row.split("|") for row in rows)}

    def test_a_killed_job_leaves_each_row_exactly_once(self):
        url, source = self.table("killed"), self.source(texts(ROWS))
        # The job waits at this row until the transaction ends.
        zeros = "[" + ",".join(["0"] * self.dimension) + "]"
        with self.postgres.session(f"INSERT INTO killed VALUES ({ROWS * 3 // 4}, '{zeros}')"):
            process = self.start(source, url, "--metadata", "title")
            wait_for("rows", lambda: int(self.postgres.sql("SELECT count(*) FROM killed")) >= ROWS // 2)
            checkpoint = source.with_name(".failed-docs.jsonl.kivu-checkpoint")
            wait_for("a checkpoint", lambda: json.loads(checkpoint.read_bytes().splitlines()[1])["progress"]["rows"] > 0
                     if b"\n" in checkpoint.read_bytes() else False)
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.assertLess(len(self.stored("killed")), ROWS)
        self.postgres.sql("UPDATE killed SET title = 'title ' || id || ' before' WHERE id < 256")
        done, failed, report = self.job(source, url, "--metadata", "title")
        self.assertEqual((report["rows"], report["errors"], failed.read_bytes()), (ROWS, {}, b""))
        self.assert_equal_vectors(self.stored("killed"))
        # The rows before the last save are not written again.
        self.assertEqual(self.postgres.sql("SELECT count(*) FROM killed WHERE title LIKE '% before'"), "256")
        self.assertEqual(self.postgres.sql("SELECT count(*) FROM killed WHERE title = 'title ' || id"), str(ROWS - 256))
        self.assertIn(f"stored  {ROWS} rows in postgres://127.0.0.1", done.stdout)
        # Once more, for rows that exist.
        self.job(source, url, "--metadata", "title", "--overwrite")
        self.assert_equal_vectors(self.stored("killed"))

    def test_a_lost_connection_is_replaced(self):
        url, source = self.table("lost"), self.source(texts(200))
        zeros = "[" + ",".join(["0"] * self.dimension) + "]"
        connections = "FROM pg_stat_activity WHERE application_name = 'kivu batch'"
        with self.postgres.session(f"INSERT INTO lost VALUES (150, '{zeros}')"):
            process = self.start(source, url)
            waits = f"SELECT count(*) {connections} AND wait_event_type = 'Lock'"
            wait_for("the row", lambda: self.postgres.sql(waits) == "1")
            self.postgres.sql(f"SELECT pg_terminate_backend(pid) {connections}")
        self.assertEqual(process.wait(), 0)
        self.assertEqual(self.postgres.sql("SELECT count(*) FROM lost"), "200")

    def test_rows_that_the_table_refuses_are_kept_with_their_errors(self):
        url = self.table("refused", "price integer, title varchar(8) UNIQUE")
        rows = [
            {"id": "1", "text": "a", "price": "5", "title": "one"},
            {"id": "2", "text": "b", "price": "secret", "title": "two"},
            {"id": "x", "text": "c", "price": "", "title": "three"},
            {"id": "4", "text": "d", "price": "7", "title": "one"},
            {"id": "5", "text": "e", "price": "8", "title": "much too long"},
            {"id": "6", "text": "", "price": "9", "title": "six"},
            {"id": "1", "text": "f", "price": "9", "title": "seven"},
            {"id": "", "text": "f", "price": "9", "title": "eight"},
            {"id": "9", "text": "f", "price": "", "title": "nine"},
            # Equal to the last one for the column's type.
            {"id": " 09", "text": "g", "price": "", "title": "ten"},
            {"id": "11", "text": "g", "price": "", "title": "dropped"},
        ]
        self.postgres.sql("CREATE FUNCTION dropping() RETURNS trigger LANGUAGE plpgsql AS "
                          "$$ BEGIN IF NEW.title = 'dropped' THEN RETURN NULL; END IF; RETURN NEW; END $$",
                          "CREATE TRIGGER dropping BEFORE INSERT ON refused FOR EACH ROW EXECUTE FUNCTION dropping()")
        done, failed, report = self.job(self.source(rows, "docs.csv"), url, "--metadata", "price,title")
        stored = self.postgres.sql("SELECT id, price, title FROM refused ORDER BY id").splitlines()
        self.assertEqual(stored, ["1|5|one", "9||nine"])
        self.assertEqual(report["errors"], {"sink": 8, "text": 1})
        errors = [row["error"] for row in csv.DictReader(failed.open())]
        self.assertEqual(errors, [
            '22P02 invalid input syntax for type integer: "…"',
            "expected a decimal number as the id, since its column has the type `int8`",
            '23505 duplicate key value violates unique constraint "refused_title_key"',
            "22001 value too long for type character varying(8)",
            "expected a text, but found an empty one",
            "the id in `id` is also that of an earlier row",
            "expected a text or an integer as the id in `id`, but found nothing",
            "the id in `id` is also that of an earlier row",
            "the table did not store the row; a trigger may have dropped it",
        ])
        self.assertEqual(list(csv.DictReader(failed.open()))[0], rows[1] | {"error": errors[0]})
        self.assertIn("stored  2 rows", done.stdout)

    def test_rows_that_an_index_a_late_constraint_or_a_trigger_refuses_do_not_end_the_job(self):
        self.postgres.sql("CREATE TABLE kinds (name text PRIMARY KEY)", "INSERT INTO kinds VALUES ('a')")
        url = self.table("late", "title text, kind text REFERENCES kinds DEFERRABLE INITIALLY DEFERRED")
        self.postgres.sql("CREATE INDEX ON late (title)",
                          "CREATE FUNCTION raising() RETURNS trigger LANGUAGE plpgsql AS "
                          "$$ BEGIN IF NEW.title = 'secret' THEN RAISE 'no %', NEW.title; END IF; RETURN NEW; END $$",
                          "CREATE TRIGGER raising BEFORE INSERT ON late FOR EACH ROW EXECUTE FUNCTION raising()")
        titles = [("one", "a"), (os.urandom(9000).hex(), "a"), ("three", "b"), ("secret", "a"), ("five", "a")]
        rows = [{"id": number, "text": "a", "title": title, "kind": kind} for number, (title, kind) in enumerate(titles, 1)]
        _, failed, report = self.job(self.source(rows), url, "--metadata", "title,kind")
        self.assertEqual(self.postgres.sql("SELECT id FROM late ORDER BY id").splitlines(), ["1", "5"])
        errors = [json.loads(line)["error"] for line in failed.read_text().splitlines()]
        self.assertRegex(errors[0], "^54000 index row ")
        self.assertEqual(errors[1:], [
            '23503 insert or update on table "late" violates foreign key constraint "late_kind_fkey"',
            "P0001 a function or a trigger refused the row",
        ])
        self.assertNotIn("secret", json.dumps(report))

    def test_ids_and_texts_are_stored_as_they_are(self):
        self.postgres.sql("CREATE DOMAIN price AS numeric(5, 1)", "CREATE DOMAIN short AS varchar(3)",
                          "CREATE TABLE exact (id price PRIMARY KEY, title short, embedding vector)")
        ids = ["1.2", "1.24", "01.20", "1.3"]
        rows = [{"id": id, "text": "a", "title": "abc"} for id in ids] + [{"id": "4", "text": "a", "title": "abcd"}]
        _, failed, _ = self.job(self.source(rows), self.postgres.url("exact"), "--metadata", "title")
        self.assertEqual(self.postgres.sql("SELECT id, title FROM exact ORDER BY id").splitlines(), ["1.2|abc", "1.3|abc"])
        self.assertEqual([json.loads(line)["error"] for line in failed.read_text().splitlines()], [
            "expected an id with at most 1 decimal places, since its column rounds others",
            "the id in `id` is also that of an earlier row",
            "22001 value too long for type character varying(3)",
        ])

    def test_rows_of_another_table_are_not_replaced(self):
        source, urls = self.source([{"id": None, "text": "a"}]), [self.table("first"), self.table("second")]
        _, failed, _ = self.job(source, urls[0], check=False)
        done, _, _ = self.job(source, urls[1], check=False)
        self.assertIn("failed-docs.jsonl` has the rows that `postgres://", done.stderr)
        self.job(source, urls[0], check=False)
        self.assertEqual(len(failed.read_text().splitlines()), 1)

    def test_columns_of_parquet_are_stored(self):
        url = self.table("parquet", "price real, is_new boolean, title text")
        rows = [{"id": number, "text": f"text {number}", "price": number / 2, "is_new": number % 2 == 0, "title": None}
                for number in range(70)]
        rows[7]["id"] = None
        _, failed, _ = self.job(self.source(rows, "docs.parquet"), url, "--metadata", "price,is_new,title")
        self.assertEqual(self.postgres.sql("SELECT count(*) FROM parquet WHERE price = id / 2.0 AND is_new = (id % 2 = 0) AND title IS NULL"), "69")
        left = pyarrow.parquet.read_table(failed).to_pylist()
        error = "expected a text or an integer as the id in `id`, but found nothing"
        self.assertEqual(left, [rows[7] | {"error": error}])

    def test_unfit_tables_are_refused_before_the_first_row(self):
        source, sql, url = self.source(texts(3)), self.postgres.sql, self.postgres.url
        sql("CREATE TABLE other (id bigint PRIMARY KEY, embedding vector(3), numbers real[])",
            "CREATE TABLE keyless (id bigint, embedding vector)", "CREATE DATABASE bare",
            "CREATE TABLE rounding (id real PRIMARY KEY, embedding vector)",
            "CREATE TABLE cutting (id bigint PRIMARY KEY, embedding vector, title name)",
            "CREATE COLLATION blind (locale = 'C')",
            "CREATE TABLE colliding (id text COLLATE blind PRIMARY KEY, embedding vector)",
            # Such collations need ICU, which this server does not have.
            "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'blind'")
        for found, expected in [
            (url("missing"), "expected a table for"),
            (url("other"), f"for vectors of {self.dimension} values, as the model's, but found 3"),
            (url("other", "&vector=numbers"), "to be a `vector` or a `halfvec`, but found `_float4`"),
            (url("other", "&vector=none"), "no column `none` in the table"),
            (url("rounding"), "keeps different ones apart in the column `id`"),
            (url("colliding"), "but found `text with a nondeterministic collation`"),
            (url("keyless"), "expected a primary key or a unique index of only `id`"),
            (url("other").replace("/postgres?", "/bare?"), "run `CREATE EXTENSION vector`"),
            (url("other").replace("/postgres?", "/none?"), "database \"none\" does not exist"),
            (url("other", user="stranger"), "28P01 password authentication failed"),
        ]:
            self.assertIn(expected, self.refusal(source, found))
        self.assertIn("cuts texts, since it has the type `name`", self.refusal(source, url("cutting"), "--metadata", "title"))
        self.assertIn("no column `key`; the file has `id`, `text`, `title`", self.refusal(self.source(texts(3), "docs.csv"), url("other"), "--id", "key"))
        self.assertIn("a sink takes vectors, but the model is not an embedding model", self.refusal(source, url("other"), model=CLASSIFIER))
        self.assertIn("a sink takes dense vectors of floats", self.refusal(source, url("other"), "--vector-type", "int8"))

    def test_certificates_are_verified(self):
        self.table("encrypted")
        proxy = TlsProxy(self.postgres.port, self.folder)
        try:
            source, url = self.source(texts(3)), self.postgres.url("encrypted", "&sslmode=verify-full", port=proxy.port)
            self.assertIn("certificate", self.refusal(source, url))
            self.job(source, f"{url}&sslrootcert={proxy.roots}")
            self.assertEqual(self.postgres.sql("SELECT count(*) FROM encrypted"), "3")
        finally:
            proxy.stop()


class ToS3Vectors(Base):
    URL = "s3vectors://vectors/docs"

    def setUp(self):
        self.indexes = VectorIndexes(self.dimension)
        self.addCleanup(self.indexes.stop)

    def endpoint(self):
        return self.indexes.endpoint

    def job(self, *arguments, env=(), **more):
        return super().job(*arguments, env={"AWS_ENDPOINT_URL": self.endpoint()} | dict(env), **more)

    def test_a_killed_job_leaves_each_row_exactly_once(self):
        source, arrived, go_on = self.source(texts(ROWS)), threading.Event(), threading.Event()

        def block(number):
            if number == 6:
                arrived.set()
                go_on.wait(60)

        self.indexes.fault = block
        process = self.start(source, self.URL, "--metadata", "title")
        self.assertTrue(arrived.wait(60))
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.indexes.fault = None
        go_on.set()
        _, failed, report = self.job(source, self.URL, "--metadata", "title")
        self.assertEqual((report["rows"], report["errors"], failed.read_bytes()), (ROWS, {}, b""))
        found = self.indexes.vectors
        self.assert_equal_vectors({key: vector["data"]["float32"] for key, vector in found.items()})
        self.assertTrue(all(vector["metadata"] == {"title": f"title {key}"} for key, vector in found.items()))
        # At most the rows after the last save are sent again.
        self.assertLess(sum(map(len, self.indexes.puts)), ROWS + 448)
        self.assertEqual(sum("0" in put for put in self.indexes.puts), 1)
        self.assertEqual(self.indexes.wrong, [])

    def test_busy_services_are_asked_again_with_large_batches(self):
        self.indexes.fault = lambda number: {1: 503, 2: 429}.get(number)
        self.job(self.source(texts(ROWS)), self.indexes.index["indexArn"])
        self.assertEqual([len(put) for put in self.indexes.puts], [448, 448, 104])
        self.assertEqual((len(self.indexes.vectors), self.indexes.wrong), (ROWS, []))

    def test_rows_beyond_the_limits_are_kept_with_their_errors(self):
        rows = texts(6)
        # Refused before it is sent, as the service counts no fewer bytes.
        rows[1]["title"] = "t" * 3000
        # Refused by the service, which counts more.
        rows[2]["title"] = "t" * 2040
        rows[3] |= {"body": "b" * 30000}
        rows[4] |= {"body": "b" * 41000}
        rows[5]["id"] = "k" * 1025
        _, failed, report = self.job(self.source(rows), self.URL, "--metadata", "title,body")
        self.assertEqual((sorted(self.indexes.vectors), report["errors"]), (["0", "3"], {"sink": 4}))
        errors = [json.loads(line)["error"] for line in failed.read_text().splitlines()]
        self.assertIn("expected at most 2048 bytes of metadata that queries can filter by, but found 3005", errors[0])
        self.assertIn("ValidationException: Invalid record for key '2'", errors[1])
        self.assertEqual(errors[2], "expected at most 40960 bytes of metadata, but found 41016")
        self.assertEqual(errors[3], "expected an id of at most 1024 characters, but found 1025")
        self.assertEqual(self.indexes.wrong, [])

    def test_unfit_indexes_are_refused_before_the_first_row(self):
        source = self.source(texts(3))
        self.assertIn("NotFoundException", self.refusal(source, "s3vectors://vectors/none"))
        self.assertIn("expected at most 50 names", self.refusal(source, self.URL, "--metadata", ",".join(f"m{n}" for n in range(51))))
        self.indexes.index["dimension"] = 3
        self.assertIn("as the model's, but found 3", self.refusal(source, self.URL))


class ToOpenSearch(Base):
    def setUp(self):
        self.cluster = OpenSearch(self.dimension)
        self.addCleanup(self.cluster.stop)

    def test_documents_are_indexed_by_id(self):
        self.cluster.fault = lambda number: {1: 429, 2: 503}.get(number)
        self.cluster.refused_once = {"7": 429, "500": 429}
        _, failed, report = self.job(self.source(texts(ROWS)), self.cluster.url(), "--metadata", "title")
        self.assertEqual((report["errors"], failed.read_bytes()), ({}, b""))
        found = self.cluster.documents
        self.assert_equal_vectors({key: document["embedding"] for key, document in found.items()})
        self.assertTrue(all(document["title"] == f"title {key}" for key, document in found.items()))
        # Only the refused documents are sent again.
        self.assertEqual([len(put) for put in self.cluster.puts], [448, 1, 448, 1, 104])
        self.assertEqual(self.cluster.wrong, [])

    def test_a_killed_job_leaves_each_row_exactly_once(self):
        source, arrived, go_on = self.source(texts(ROWS)), threading.Event(), threading.Event()

        def block(number):
            if number == 6:
                arrived.set()
                go_on.wait(60)

        self.cluster.fault = block
        process = self.start(source, self.cluster.url())
        self.assertTrue(arrived.wait(60))
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.cluster.fault = None
        go_on.set()
        self.job(source, self.cluster.url())
        self.assert_equal_vectors({key: document["embedding"] for key, document in self.cluster.documents.items()})
        self.assertEqual(sum("0" in put for put in self.cluster.puts), 1)

    def test_refused_documents_are_kept_with_their_errors(self):
        self.cluster.max_bytes = 20000
        rows = [row | {"price": 1.5} for row in texts(100)]
        rows[3]["price"] = "secret"
        rows[5]["title"] = "t" * 30000
        rows[6]["id"] = "k" * 513
        rows[7]["title"] = "dropped"
        rows[8]["price"] = 12345678901234567890123
        _, failed, report = self.job(self.source(rows), self.cluster.url(), "--metadata", "title,price")
        self.assertEqual((len(self.cluster.documents), report["errors"]), (95, {"row": 1, "sink": 4}))
        errors = [json.loads(line)["error"] for line in failed.read_text().splitlines()]
        self.assertEqual(errors[0], "400 mapper_parsing_exception: failed to parse field [price] of type [float] in document with id '3'")
        self.assertIn("expected a shorter document", errors[1])
        self.assertEqual(errors[2], "expected an id of at most 512 bytes, but found 513")
        self.assertIn("the index did not store the document", errors[3])
        self.assertIn("a number with more digits than 64 bits hold", errors[4])
        self.assertEqual(self.cluster.wrong, [])

    def test_unfit_indexes_are_refused_before_the_first_row(self):
        source = self.source(texts(3))
        self.assertIn("expected an index at", self.refusal(source, self.cluster.url("none")))
        self.assertIn("the status is 401", self.refusal(source, self.cluster.url(user="other")))
        self.assertIn("expected the field `title`", self.refusal(source, self.cluster.url() + "?vector=title"))
        self.cluster.dimension = 3
        self.assertIn("as the model's, but found 3", self.refusal(source, self.cluster.url()))


class Options(Base):
    def test_options_without_effect_are_refused(self):
        source = self.source(texts(3))
        self.assertIn("`--id` is for a database", self.refusal(source, self.folder / "out.jsonl", "--id", "key"))
        done = kivu("", "batch", "-", "s3vectors://vectors/docs", "--model", BUNDLE, check=False, env=self.env)
        self.assertIn("expected `--failed FILE`", done.stderr)


if __name__ == "__main__":
    unittest.main()
