"""Runs real frameworks and clients, unmodified, against a running server; docs/clients.md has their settings.

    pip install --require-hashes -r tests/frameworks/requirements.txt
    TEST_URL=http://127.0.0.1:8080 python tests/frameworks/test_frameworks.py

The server serves an embedding model `tiny` that has prompts for queries and documents and aliases,
a tiny fastText model, `rank` and `translate-en-pt` of `models/`, and `ner-labels` and `ner-encoded-labels`,
which find entities by the request's labels. Every framework must get what the same
texts get from `/embed`, to 1e-6, and equal integers and bits. Frameworks connect to TEST_URL only.
"""

import io
import json
import os
import sys
import time
import unittest
import urllib.request
import warnings
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = sys.pycache_prefix is None  # no __pycache__ among the sources
warnings.simplefilter("ignore")

URL = os.environ.get("TEST_URL", "").rstrip("/")
MODEL = "tiny"
ALIAS = "text-embedding-3-small"
KEY = "any"
TEXTS = ["The ferry leaves at seven.", "Der Zug nach Hamburg fährt um zwölf ab.", "A cat sat on the mat."]
QUERY = "When does the ferry leave?"
TYPES = ["int8", "uint8", "binary", "ubinary"]

for name in list(os.environ):
    if name.lower().endswith("_proxy") or name.endswith(("_API_KEY", "_BASE_URL", "_API_BASE")):
        os.environ.pop(name)
os.environ.update(
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    LITELLM_LOG="ERROR",
    HAYSTACK_TELEMETRY_ENABLED="False",
    LANGCHAIN_TRACING_V2="false",
    HF_HUB_OFFLINE="1",
    NO_PROXY="*",
)

import llama_index.core  # noqa: E402

# The encoding of OpenAI's models, which tiktoken would download.
os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(llama_index.core.__file__).parent / "_static/tiktoken_cache")

import boto3  # noqa: E402
import botocore.awsrequest  # noqa: E402
import botocore.config  # noqa: E402
import botocore.exceptions  # noqa: E402
import cohere  # noqa: E402
import deepl  # noqa: E402
import litellm  # noqa: E402
import numpy  # noqa: E402
import ollama  # noqa: E402
import openai  # noqa: E402
import voyageai  # noqa: E402
from haystack import Document  # noqa: E402
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder  # noqa: E402
from haystack.utils import Secret  # noqa: E402
from langchain_cohere import CohereEmbeddings  # noqa: E402
from langchain_ollama import OllamaEmbeddings  # noqa: E402
from langchain_openai import OpenAIEmbeddings  # noqa: E402
from libretranslatepy import LibreTranslateAPI  # noqa: E402
from llama_index.embeddings.openai_like import OpenAILikeEmbedding  # noqa: E402
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference  # noqa: E402
from presidio_analyzer import AnalyzerEngine, RecognizerRegistry  # noqa: E402
from presidio_analyzer.nlp_engine import NoOpNlpEngine  # noqa: E402
from presidio_analyzer.predefined_recognizers import CreditCardRecognizer  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/presidio"))
from kivu_recognizer import KivuRecognizer  # noqa: E402


def request(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers), timeout=30) as response:
        return json.load(response)


def embed(texts, **options):
    return request("/embed", {"inputs": texts, "model": MODEL, **options})


class FrameworkTest(unittest.TestCase):
    def assert_embeds(self, found, texts, **options):
        expected = numpy.asarray(embed(texts, **options), dtype=numpy.float64)
        found = numpy.asarray(found, dtype=numpy.float64)
        self.assertEqual(found.shape, expected.shape)
        self.assertLessEqual(float(numpy.abs(found - expected).max()), 1e-6)


def entities(text, labels, **parameters):
    """What the model finds, by its own route."""
    return request("/models/ner-labels", {"inputs": text, "parameters": {"labels": labels, **parameters}})


class Chat(FrameworkTest):
    """Entities in the form of chat completions, as clients of NVIDIA's GLiNER service ask for them."""

    TEXT = "My name is Wolfgang and I live in Jose\u0301 Town 👩\u200d👧 now"
    LABELS = ["person", "city", "e-mail address"]

    def setUp(self):
        self.client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)

    def ask(self, messages, model="ner-labels", **options):
        answer = self.client.chat.completions.create(model=model, messages=messages, extra_body=options)
        self.assertEqual((answer.object, answer.choices[0].finish_reason), ("chat.completion", "stop"))
        self.assertGreater(answer.usage.prompt_tokens, 0)
        self.assertEqual(answer.usage.completion_tokens, 0)
        return json.loads(answer.choices[0].message.content)

    def test_the_last_user_message_is_read(self):
        messages = [
            {"role": "system", "content": "Find names."},
            {"role": "user", "content": "Ann"},
            {"role": "assistant", "content": "{}"},
            {"role": "user", "content": [{"type": "text", "text": self.TEXT}]},
        ]
        for flat in (True, False):
            options = {"threshold": 0.2, "chunk_length": 384, "overlap": 128, "flat_ner": flat}
            found = self.ask(messages, labels=self.LABELS, **options)
            expected = entities(self.TEXT, self.LABELS, threshold=0.2, flat=flat)
            self.assertEqual(found["total_entities"], len(expected))
            self.assertGreater(len(expected), 1)
            places = [(entity["label"], entity["start"], entity["end"], entity["score"]) for entity in found["entities"]]
            own = [(entity["entity_group"], entity["start"], entity["end"], entity["score"]) for entity in expected]
            self.assertEqual(places, own)
            for entity in found["entities"]:
                self.assertEqual(entity["text"], self.TEXT[entity["start"] : entity["end"]])
            first = found["entities"][0]
            self.assertIn(f"[{first['text']}]({first['label']})", found["tagged_text"])

    def test_long_texts_are_read_in_windows(self):
        text = f"{self.TEXT}. " * 9
        found = self.ask([{"role": "user", "content": text}], labels=self.LABELS, threshold=0.2, flat_ner=True)
        self.assertEqual(found["total_entities"], len(entities(text, self.LABELS, threshold=0.2, stride=13)))
        self.assertGreater(found["entities"][-1]["start"], 300)

    def test_default_labels_are_those_of_personal_data(self):
        # A model whose second encoder reads labels, which do not count towards the text's limit.
        found = self.ask([{"role": "user", "content": "Ann met Bob"}], model="ner-encoded-labels", threshold=0.1)
        self.assertTrue({entity["label"] for entity in found["entities"]} & {"first_name", "email", "ssn", "age"})
        with self.assertRaisesRegex(openai.APIStatusError, "the labels have [0-9]+ tokens"):
            self.ask([{"role": "user", "content": "Ann"}])

    def test_requests_for_generated_text_are_refused(self):
        message = [{"role": "user", "content": "Ann"}]
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
        for options in ({"stream": True}, {"n": 2}, {"tools": [tool]}, {"response_format": {"type": "json_object"}}):
            with self.assertRaisesRegex(openai.UnprocessableEntityError, "generate no text"):
                self.client.chat.completions.create(
                    model="ner-labels", messages=message, extra_body={"labels": ["x"]}, **options
                )
        with self.assertRaisesRegex(openai.UnprocessableEntityError, "token-classification"):
            self.client.chat.completions.create(model=MODEL, messages=message)
        with self.assertRaisesRegex(openai.UnprocessableEntityError, "`user`"):
            self.ask([{"role": "system", "content": "Ann"}], labels=["x"])


class Presidio(FrameworkTest):
    """The recognizer in examples/presidio."""

    TEXT = "My name is Wolfgang, I live in Berlin and pay with 4111111111111111"
    LABELS = {"PERSON": "person", "LOCATION": "city"}

    def analyzer(self, **options):
        registry = RecognizerRegistry([CreditCardRecognizer()], supported_languages=["en"])
        recognizer = KivuRecognizer("ner-labels", self.LABELS, url=URL, threshold=0.3, **options)
        registry.add_recognizer(recognizer)
        engine = NoOpNlpEngine([{"lang_code": "en", "model_name": "none"}])
        engine.load()
        return AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=["en"])

    def test_presidio_finds_what_the_model_finds(self):
        analyzer = self.analyzer()
        found = analyzer.analyze(self.TEXT, language="en")
        self.assertIn("CREDIT_CARD", {result.entity_type for result in found})
        own = {(result.entity_type, result.start, result.end, result.score) for result in found}
        names = {label: name for name, label in self.LABELS.items()}
        expected = {
            (names[entity["entity_group"]], entity["start"], entity["end"], entity["score"])
            for entity in entities(self.TEXT, list(names), threshold=0.3, stride=12)
        }
        self.assertTrue(expected)
        self.assertEqual({result for result in own if result[0] in self.LABELS}, expected)
        only = analyzer.analyze(self.TEXT, language="en", entities=["PERSON"])
        self.assertLessEqual({result.entity_type for result in only}, {"PERSON"})
        self.assertEqual(analyzer.analyze(" ", language="en"), [])

    def test_errors_do_not_contain_the_text(self):
        recognizer = KivuRecognizer("no-such-model", self.LABELS, url=URL)
        with self.assertRaisesRegex(RuntimeError, "no-such-model") as caught:
            recognizer.analyze(self.TEXT)
        self.assertNotIn("Wolfgang", str(caught.exception))


class LangChain(FrameworkTest):
    def test_openai_sends_ids_of_its_own_tokenizer_by_default(self):
        for model in (MODEL, ALIAS):
            embeddings = OpenAIEmbeddings(model=model, base_url=f"{URL}/v1", api_key=KEY)
            self.assert_embeds(embeddings.embed_documents(TEXTS), TEXTS)
            self.assert_embeds([embeddings.embed_query(QUERY)], [QUERY])

    def test_openai_with_texts_and_a_role_in_the_name(self):
        embeddings = OpenAIEmbeddings(
            model=f"{MODEL}:query", base_url=f"{URL}/v1", api_key=KEY, check_embedding_ctx_length=False
        )
        self.assert_embeds([embeddings.embed_query(QUERY)], [QUERY], prompt_name="query")

    def test_cohere_says_the_role(self):
        embeddings = CohereEmbeddings(model=MODEL, cohere_api_key=KEY, base_url=URL)
        self.assert_embeds(embeddings.embed_documents(TEXTS), TEXTS, prompt_name="document")
        self.assert_embeds([embeddings.embed_query(QUERY)], [QUERY], prompt_name="query")

    def test_ollama(self):
        embeddings = OllamaEmbeddings(model=MODEL, base_url=URL, validate_model_on_init=True)
        self.assert_embeds(embeddings.embed_documents(TEXTS), TEXTS)


class LlamaIndex(FrameworkTest):
    def test_openai_like(self):
        embeddings = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{URL}/v1", api_key=KEY)
        self.assert_embeds(embeddings.get_text_embedding_batch(TEXTS), TEXTS)
        self.assert_embeds([embeddings.get_query_embedding(QUERY)], [QUERY])

    def test_text_embeddings_inference(self):
        embeddings = TextEmbeddingsInference(
            model_name=MODEL, base_url=URL, query_instruction="query:", text_instruction="passage:"
        )
        # It sends no name, and puts the prompts before the texts itself.
        self.assert_embeds(embeddings.get_text_embedding_batch(TEXTS), TEXTS, prompt_name="document")
        self.assert_embeds([embeddings.get_query_embedding(QUERY)], [QUERY], prompt_name="query")


class Haystack(FrameworkTest):
    def test_openai(self):
        options = {"api_base_url": f"{URL}/v1", "api_key": Secret.from_token(KEY)}
        found = OpenAITextEmbedder(model=f"{MODEL}:query", **options).run(QUERY)
        self.assert_embeds([found["embedding"]], [QUERY], prompt_name="query")
        embedder = OpenAIDocumentEmbedder(model=f"{MODEL}:document", progress_bar=False, **options)
        found = embedder.run([Document(content=text) for text in TEXTS])["documents"]
        self.assert_embeds([document.embedding for document in found], TEXTS, prompt_name="document")


class LiteLlm(FrameworkTest):
    def embed(self, **options):
        found = litellm.embedding(input=TEXTS, api_key=KEY, **options).data
        return [entry["embedding"] for entry in found]

    def test_providers(self):
        for provider, base in [
            ("openai", f"{URL}/v1"),
            ("ollama", URL),
            ("jina_ai", f"{URL}/v1"),
        ]:
            with self.subTest(provider):
                self.assert_embeds(self.embed(model=f"{provider}/{MODEL}", api_base=base), TEXTS)

    def test_rerank(self):
        expected = request("/rerank", {"query": QUERY, "texts": TEXTS, "model": "rank"})[:2]
        for provider in ("hosted_vllm", "infinity", "jina_ai", "cohere"):
            with self.subTest(provider):
                # LiteLLM expects texts of infinity in another form than those of vLLM, whose route this is.
                options = {"api_base": URL, "api_key": KEY, "top_n": 2, "return_documents": provider != "infinity"}
                found = litellm.rerank(model=f"{provider}/rank", query=QUERY, documents=TEXTS, **options).results
                self.assertEqual([result["index"] for result in found], [rank["index"] for rank in expected])
                for result, rank in zip(found, expected):
                    self.assertAlmostEqual(result["relevance_score"], rank["score"], delta=1e-6)

    def test_nvidia(self):
        options = {"api_base": f"{URL}/v1", "input_type": "passage", "truncate": "END"}
        found = self.embed(model=f"nvidia_nim/{MODEL}", **options)
        self.assert_embeds(found, TEXTS, prompt_name="document")

    def test_cohere(self):
        found = self.embed(model=f"cohere/{MODEL}", api_base=f"{URL}/v2/embed", input_type="search_document")
        self.assert_embeds(found, TEXTS, prompt_name="document")


class Ollama(FrameworkTest):
    def setUp(self):
        self.client = ollama.Client(host=URL)

    def test_embed(self):
        answer = self.client.embed(model=MODEL, input=TEXTS)
        self.assert_embeds(answer.embeddings, TEXTS)
        self.assertGreater(answer.total_duration, 0)
        self.assertEqual(self.client.embed(model=MODEL, input="").embeddings, [])
        self.assert_embeds(self.client.embed(model=MODEL, input=QUERY, dimensions=8).embeddings, [QUERY], dimensions=8)
        self.assert_embeds([self.client.embeddings(model=f"{MODEL}:latest", prompt=QUERY).embedding], [QUERY])

    def test_models(self):
        self.assertIn(MODEL, [model.model for model in self.client.list().models])
        shown = self.client.show(MODEL)
        self.assertEqual((shown.capabilities, shown.modelinfo["bert.embedding_length"]), (["embedding"], 32))
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.embed(model="none", input="a")
        self.assertEqual(caught.exception.status_code, 404)


class Cohere(FrameworkTest):
    def test_types(self):
        client = cohere.ClientV2(api_key=KEY, base_url=URL)
        options = {"model": MODEL, "texts": TEXTS, "input_type": "search_document"}
        found = client.embed(embedding_types=["float", *TYPES], **options).embeddings
        self.assert_embeds(found.float_, TEXTS, prompt_name="document")
        for name in TYPES:
            expected = embed(TEXTS, prompt_name="document", output_dtype=name)
            self.assertEqual(getattr(found, name), expected, name)

    def test_first_version(self):
        client = cohere.Client(api_key=KEY, base_url=URL)
        found = client.embed(model=MODEL, texts=TEXTS, input_type="search_query")
        self.assert_embeds(found.embeddings, TEXTS, prompt_name="query")


class Bedrock(FrameworkTest):
    titan = "amazon.titan-embed-text-v2:0"
    cohere = "cohere.embed-multilingual-v3"
    arn = "arn:aws:bedrock:eu-west-1::foundation-model/"

    def client(self, **options):
        config = botocore.config.Config(retries={"total_max_attempts": 1})
        return boto3.client("bedrock-runtime", endpoint_url=URL, region_name="eu-west-1", config=config, **options)

    def signing(self):
        return self.client(aws_access_key_id="a", aws_secret_access_key="b")

    def invoke(self, model, body, client=None, **options):
        answer = (client or self.signing()).invoke_model(modelId=model, body=json.dumps(body), **options)
        self.assertEqual(answer["contentType"], "application/json")
        return json.loads(answer["body"].read())

    def test_titan(self):
        for model in (self.titan, self.arn + self.titan, MODEL):
            self.assert_embeds([self.invoke(model, {"inputText": QUERY})["embedding"]], [QUERY])
        body = {"inputText": QUERY, "dimensions": 16, "embeddingTypes": ["float", "binary"]}
        found = self.invoke(self.titan, body, accept="application/json", contentType="application/json")
        self.assert_embeds([found["embeddingsByType"]["float"]], [QUERY], dimensions=16)
        self.assertEqual(found["embeddingsByType"]["binary"], [int(value > 0) for value in found["embedding"]])
        self.assertGreater(found["inputTextTokenCount"], 0)

    def test_cohere_embed(self):
        found = self.invoke(self.cohere, {"texts": TEXTS, "input_type": "search_document", "truncate": "END"}, accept="*/*")
        self.assert_embeds(found["embeddings"], TEXTS, prompt_name="document")
        self.assertEqual((found["texts"], found["response_type"]), (TEXTS, "embeddings_floats"))
        types = ["float", *TYPES]
        found = self.invoke(self.cohere, {"texts": TEXTS, "input_type": "search_query", "embedding_types": types})
        self.assert_embeds(found["embeddings"]["float"], TEXTS, prompt_name="query")
        for name in TYPES:
            self.assertEqual(found["embeddings"][name], embed(TEXTS, prompt_name="query", output_dtype=name), name)

    def test_rerank(self):
        found = self.invoke("cohere.rerank-v3-5:0", {"query": QUERY, "documents": TEXTS, "top_n": 2, "api_version": 2})
        expected = request("/rerank", {"query": QUERY, "texts": TEXTS, "model": "rank"})[:2]
        self.assertEqual([result["index"] for result in found["results"]], [rank["index"] for rank in expected])
        for result, rank in zip(found["results"], expected):
            self.assertAlmostEqual(result["relevance_score"], rank["score"], delta=1e-6)

    def test_keys_are_bearer_tokens(self):
        """boto3 sends tokens to HTTPS endpoints only; the request is passed on to the server."""
        sent = []

        def forward(request, **_):
            sent.append(request.headers["Authorization"])
            headers = {"Authorization": sent[0], "Content-Type": "application/octet-stream"}
            to = urllib.request.Request(request.url.replace("https://kivu.invalid", URL), request.body, headers)
            with urllib.request.urlopen(to, timeout=30) as answer:
                return botocore.awsrequest.AWSResponse(request.url, 200, answer.headers, io.BytesIO(answer.read()))

        options = {"endpoint_url": "https://kivu.invalid", "region_name": "eu-west-1"}
        with mock.patch.dict(os.environ, AWS_BEARER_TOKEN_BEDROCK=KEY):
            client = boto3.client("bedrock-runtime", **options)
            client.meta.events.register("before-send", forward)
            self.assert_embeds([self.invoke(self.titan, {"inputText": QUERY}, client)["embedding"]], [QUERY])
        self.assertIn(sent, ([f"Bearer {KEY}"], [f"Bearer {KEY}".encode()]))

    def test_errors_are_exceptions(self):
        client = self.signing()
        known = client.exceptions
        for model, body, expected in [
            ("unknown", {"inputText": "a"}, known.ResourceNotFoundException),
            (self.titan, {"inputText": ""}, known.ValidationException),
            (self.titan, {"inputText": "a", "texts": ["a"]}, known.ValidationException),
            ("cohere.rerank-v3-5:0", {"inputText": "a"}, known.ValidationException),
        ]:
            with self.assertRaises(expected) as caught:
                self.invoke(model, body, client)
            self.assertIn("expected" if model != "unknown" else "unknown model", str(caught.exception))
        with self.assertRaises(botocore.exceptions.ClientError) as caught:
            client.converse(modelId=self.titan, messages=[{"role": "user", "content": [{"text": "a"}]}])
        self.assertEqual(caught.exception.response["Error"]["Code"], "UnknownOperationException")

    def test_litellm(self):
        options = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region_name": "eu-west-1"}
        for model in (self.titan, self.cohere):
            found = litellm.embedding(
                model=f"bedrock/{model}", input=TEXTS, aws_bedrock_runtime_endpoint=URL, **options
            ).data
            # LiteLLM's default role.
            role = {"prompt_name": "document"} if model == self.cohere else {}
            self.assert_embeds([entry["embedding"] for entry in found], TEXTS, **role)


class Voyage(FrameworkTest):
    def setUp(self):
        self.client = voyageai.Client(api_key=KEY, base_url=f"{URL}/v1")

    def test_types(self):
        for role in ("query", "document"):
            found = self.client.embed(TEXTS, model=MODEL, input_type=role)
            self.assert_embeds(found.embeddings, TEXTS, prompt_name=role)
            self.assertGreater(found.total_tokens, 0)
        for name in TYPES:
            found = self.client.embed(TEXTS, model=MODEL, output_dtype=name).embeddings
            self.assertEqual(found, embed(TEXTS, output_dtype=name), name)
        found = self.client.embed(TEXTS, model=MODEL, output_dimension=16).embeddings
        self.assert_embeds(found, TEXTS, dimensions=16)

    def test_rerank(self):
        found = self.client.rerank(QUERY, TEXTS, model="rank", top_k=2).results
        expected = request("/rerank", {"query": QUERY, "texts": TEXTS, "model": "rank"})[:2]
        self.assertEqual([result.index for result in found], [rank["index"] for rank in expected])
        for result, rank in zip(found, expected):
            self.assertAlmostEqual(result.relevance_score, rank["score"], delta=1e-6)
            self.assertEqual(result.document, TEXTS[rank["index"]])


class DeepL(FrameworkTest):
    def test_translations(self):
        client = deepl.DeepLClient(KEY, server_url=URL, send_platform_info=False)
        texts = ["How are you?", "Good morning!"]
        found = client.translate_text(texts, target_lang="PT-BR")
        expected = request("/translate", {"inputs": texts, "model": "translate-en-pt"})["translations"]
        self.assertEqual([result.text for result in found], [entry["text"] for entry in expected])
        self.assertEqual(found[0].detected_source_lang, "EN")
        self.assertEqual([(it.code, it.name) for it in client.get_source_languages()], [("EN", "English")])
        self.assertEqual([it.code for it in client.get_target_languages()], ["PT"])
        with self.assertRaises(deepl.DeepLException):
            client.translate_text("a", target_lang="DE")


class Requests(FrameworkTest):
    """Requests of programs that are not packages for Python, as their sources build them."""

    def test_open_webui(self):
        # `generate_openai_batch_embeddings` and `generate_ollama_batch_embeddings` of its retrieval/utils.py.
        body = {"input": TEXTS, "model": MODEL}
        self.assert_embeds([entry["embedding"] for entry in request("/v1/embeddings", body)["data"]], TEXTS)
        self.assert_embeds(request("/api/embed", body)["embeddings"], TEXTS)
        # RAG_EMBEDDING_PREFIX_FIELD_NAME=input_type, with `query` as the prefix of queries.
        found = request("/v1/embeddings", {"input": [QUERY], "model": MODEL, "input_type": "query"})
        self.assert_embeds([found["data"][0]["embedding"]], [QUERY], prompt_name="query")

    def test_vercel_ai_sdk(self):
        # `embedMany` of `ai` 6.0.326 with `@ai-sdk/openai-compatible` 2.0.91 and `@ai-sdk/cohere` 3.0.63.
        body = {"model": MODEL, "input": TEXTS, "encoding_format": "float"}
        answer = request("/v1/embeddings", body)
        self.assert_embeds([entry["embedding"] for entry in answer["data"]], TEXTS)
        self.assertGreater(answer["usage"]["prompt_tokens"], 0)
        body = {"model": MODEL, "embedding_types": ["float"], "texts": TEXTS, "input_type": "search_query"}
        self.assert_embeds(request("/v2/embed", body)["embeddings"]["float"], TEXTS, prompt_name="query")

    def test_opensearch(self):
        # The request bodies of ML Commons' connector blueprints for OpenAI and Cohere.
        found = request("/v1/embeddings", {"input": TEXTS, "model": ALIAS})
        self.assert_embeds([entry["embedding"] for entry in found["data"]], TEXTS)
        body = {"texts": TEXTS, "truncate": "END", "model": MODEL, "input_type": "search_document"}
        self.assert_embeds(request("/v1/embed", body)["embeddings"], TEXTS, prompt_name="document")

    def test_libretranslatepy(self):
        client = LibreTranslateAPI(URL)
        found = client.detect("O gato.")
        self.assertEqual([language["language"] for language in found], ["pt", "ko"])
        self.assertGreater(found[0]["confidence"], 75)
        self.assertEqual(found, request("/detect", {"q": "O gato."}))
        expected = request("/translate", {"inputs": "How are you?"})["translations"][0]["text"]
        self.assertEqual(client.translate("How are you?", "auto", "pt"), expected)
        self.assertEqual(client.languages(), request("/languages"))

    def test_libre_translate(self):
        found = request("/translate", {"q": "How are you?", "source": "auto", "target": "pt", "format": "text"})
        expected = request("/translate", {"inputs": "How are you?"})["translations"][0]["text"]
        detected = {"confidence": 0.0, "language": "en"}
        self.assertEqual(found, {"translatedText": expected, "detectedLanguage": detected})
        self.assertEqual(request("/languages"), [{"code": "en", "name": "English", "targets": ["pt"]}])


class Overhead(FrameworkTest):
    """The cost of a dialect, in the server: the time for one short text over one connection.

    The 10th percentile has less noise of a busy machine than the median.
    """

    MAX_MS = 0.5

    def test_dialects(self):
        import http.client

        text = "hello"
        requests = {
            "/embed": {"inputs": text, "model": MODEL},
            "/v1/embeddings": {"input": text, "model": MODEL},
            "/v2/embed": {"texts": [text], "model": MODEL},
            "/api/embed": {"input": text, "model": MODEL},
        }
        host = URL.removeprefix("http://")
        connection, times = http.client.HTTPConnection(host), {path: [] for path in requests}
        for _ in range(100):
            for path, body in requests.items():
                body = json.dumps(body)
                started = time.perf_counter()
                connection.request("POST", path, body, {"content-type": "application/json"})
                connection.getresponse().read()
                times[path].append(time.perf_counter() - started)
        fast = {path: float(numpy.percentile(found, 10)) * 1000 for path, found in times.items()}
        print("p10 in ms:", {path: round(found, 3) for path, found in fast.items()}, file=sys.stderr)
        for path, found in fast.items():
            self.assertLessEqual(found - fast["/embed"], self.MAX_MS, path)


if __name__ == "__main__":
    unittest.main(verbosity=1)
