//! The sets of fields against schemas, requests and the documentation.

use std::{fs, path::Path};

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

use super::*;
use crate::scripted::ask;
use crate::{
    bodies::request::RequestBody,
    dialects::{
        bedrock::{BedrockEmbedRequest, BedrockRankRequest, TitanRequest},
        chat::ChatRequest,
        cohere::CohereEmbedRequest,
        kserve::InferRequest,
        llama_cpp::ContentRequest,
        ollama::{
            OllamaEmbedRequest, OllamaEmbeddingsRequest, models::OllamaShowRequest,
            pull::OllamaPullRequest,
        },
        openai::EmbeddingsRequest,
        score::ScoreRequest,
        translators::{DeepLRequest, LibreTranslateRequest},
        vllm::LabelsRequest,
    },
    tasks::{
        VertexRequest,
        classification::PredictRequest,
        detection::DetectRequest,
        embedding::{EmbedRequest, SimilarityRequest},
        extraction::ExtractionRequest,
        ranking::{DocumentsRequest, RerankRequest},
        restoration::RestoreRequest,
        tokens::{DecodeRequest, TokenizeRequest},
        translation::TranslateRequest,
    },
};
use kivu::{
    pipeline::generation::GenerationOptions,
    task::{
        classification::{ClassificationParameters, ZeroShotParameters},
        entities::{TokenClassificationParameters, ZeroShotEntitiesParameters},
    },
};

/// Groups without documentation: Kivu's own fields, and bodies with several sets.
const OWN: [&str; 2] = ["kivu", "body"];

fn tables() -> BTreeMap<String, BTreeMap<String, BTreeMap<String, Value>>> {
    serde_json::from_str(include_str!("fields.json")).unwrap()
}

/// Published request schemas: the API, the body, and its fields.
fn published() -> Vec<(String, String, Known)> {
    let rows = tables().into_iter().flat_map(|(api, requests)| {
        let rows = requests.into_iter().filter_map(|(name, set)| {
            let request = set.get("request")?.as_str()?.to_owned();
            let known = known(&format!("{api}.{name}")).unwrap();
            Some((api.clone(), request, known))
        });
        rows.collect::<Vec<_>>()
    });
    rows.collect()
}

#[test]
fn sets_have_known_parts() {
    let keys = [
        "foreign",
        "inner",
        "misplaced",
        "read",
        "refused",
        "request",
        "uses",
        "without_effect",
    ];
    for (group, sets) in tables() {
        for (name, set) in &sets {
            let is_own = OWN.contains(&group.as_str());
            assert!(!is_own || !set.contains_key("request"), "{name}");
            assert!(set.keys().all(|key| keys.contains(&key.as_str())), "{name}");
            let by_name = ["inner", "misplaced"].map(|key| set.get(key).and_then(Value::as_object));
            let lists = by_name
                .into_iter()
                .flatten()
                .flat_map(|sets| sets.values())
                .chain(set.get("uses"))
                .chain(set.get("foreign"));
            for used in lists.flat_map(|list| list.as_array().unwrap()) {
                known(used.as_str().unwrap()).unwrap();
            }
        }
    }
}

/// Rows of a table, with the paths of inner fields, and the number of fields.
fn add_rows(path: &str, fields: &Fields, rows: &mut [Vec<String>; 3]) {
    let named = |name: &str| format!("`{path}{name}`");
    rows[0].extend(fields.read.iter().map(|name| named(name)));
    rows[1].extend(fields.without_effect.iter().map(|name| named(name)));
    rows[2].extend(fields.refused.iter().map(|field| {
        let unless: Vec<_> = field
            .unless
            .iter()
            .map(|value| format!("`{value}`"))
            .collect();
        match unless.is_empty() {
            true => named(field.name),
            false => format!("{} (except {})", named(field.name), unless.join(", ")),
        }
    }));
    for (name, known) in fields.inner {
        let own = &tables()["kivu"];
        let is_own = |name| super::known(&format!("kivu.{name}")).unwrap()[0].read;
        let own: Vec<_> = own.keys().map(is_own).collect();
        for inner in known.iter().filter(|inner| !own.contains(&inner.read)) {
            add_rows(&format!("{path}{name}."), inner, rows);
        }
    }
}

/// docs/request-fields.md.
fn page() -> String {
    let (mut tables, mut counts, mut api_before) = (String::new(), [0; 3], String::new());
    let mut apis = 0;
    for (api, body, known) in published() {
        let mut rows = <[Vec<String>; 3]>::default();
        for fields in known {
            add_rows("", fields, &mut rows);
        }
        if api != api_before {
            tables += &format!(
                "\n## {api}\n\n| request | supported | without effect | refused |\n|---|---|---|---|\n"
            );
            (api_before, apis) = (api, apis + 1);
        }
        for (count, row) in counts.iter_mut().zip(&rows) {
            *count += row.len();
        }
        let rows = rows.map(|row| row.join(", "));
        tables += &format!("| {body} | {} |\n", rows.join(" | "));
    }
    let [read, without_effect, refused] = counts;
    format!(
        "# Request fields\n\nEach field in the request schemas of the imitated APIs is supported, accepted without an \
         effect on results, or refused by name (422): {} fields in {} schemas of {apis} APIs, of which {read} are \
         supported, {without_effect} have no effect and {refused} are refused. [The API](api.md) describes supported \
         fields, and Kivu's own.\n\n- A refused field may be `null`, empty, or have a value in the table.\n- APIs that \
         share a route share their fields.\n- Other fields are ignored, except those of other routes, other objects and libraries (`normalize_embeddings`), and \
         names of four or more characters that probably mean a field (`dimension`, `topN`, `trunc`): these are refused \
         with the right name. Fields of documents are not compared.\n\n\
         This page is made from `http/src/fields/fields.json`; `UPDATE_DOCS=1 cargo test fields` writes it.\n{tables}",
        read + without_effect + refused,
        published().len(),
    )
}

#[test]
fn the_documentation_lists_all_fields() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/request-fields.md");
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert!(
        fs::read_to_string(path).unwrap_or_default() == page,
        "run `UPDATE_DOCS=1 cargo test fields`"
    );
}

/// The fields of a type.
fn properties<T: JsonSchema>() -> BTreeSet<String> {
    let schema = SchemaGenerator::default().into_root_schema_for::<T>();
    let fields = schema
        .get("properties")
        .and_then(|fields| fields.as_object());
    fields
        .into_iter()
        .flatten()
        .map(|(name, _)| name.clone())
        .collect()
}

/// Fields in the tables that are read, and not in the type, and the opposite.
fn differences<T: JsonSchema>(set: &str) -> BTreeSet<String> {
    let read = known(set).unwrap().iter().flat_map(|fields| fields.read);
    let read: BTreeSet<String> = read.map(|name| (*name).to_owned()).collect();
    &read ^ &properties::<T>()
}

/// Differences of bodies with their tables.
macro_rules! differences {
    ($($body:ty),* $(,)?) => {
        [$((stringify!($body), differences::<$body>(<$body>::FIELDS))),*]
    };
}

fn lines(fields: &[(&str, BTreeSet<String>)]) -> String {
    let lines = fields.iter().filter(|(_, names)| !names.is_empty());
    lines.map(|line| format!("{line:?}\n")).collect()
}

#[test]
fn the_tables_have_the_fields_that_are_read() {
    let found = differences![
        EmbeddingsRequest,
        DocumentsRequest,
        ScoreRequest,
        LabelsRequest,
        ContentRequest,
        ChatRequest,
        CohereEmbedRequest,
        EmbedRequest,
        PredictRequest,
        TokenizeRequest,
        DecodeRequest,
        VertexRequest,
        ExtractionRequest,
        InferRequest,
        OllamaEmbedRequest,
        OllamaEmbeddingsRequest,
        OllamaShowRequest,
        OllamaPullRequest,
        RestoreRequest,
    ];
    // Another name for `candidate_labels`.
    insta::assert_snapshot!(lines(&found), @r#"
    ("LabelsRequest", {"labels"})
    ("PredictRequest", {"labels"})
    "#);
    let found = [
        ("rerank", differences::<RerankRequest>("body.tei_rerank")),
        (
            "similarity",
            differences::<SimilarityRequest>("text-embeddings-inference.similarity"),
        ),
        ("titan", differences::<TitanRequest>("Amazon Bedrock.titan")),
        (
            "embed",
            differences::<BedrockEmbedRequest>("Amazon Bedrock.embed"),
        ),
        (
            "rank",
            differences::<BedrockRankRequest>("Amazon Bedrock.rank"),
        ),
        ("deepl", differences::<DeepLRequest>("DeepL.translate")),
        (
            "libre",
            differences::<LibreTranslateRequest>("LibreTranslate.translate"),
        ),
        (
            "detect",
            differences::<DetectRequest>("LibreTranslate.detect"),
        ),
        (
            "translate",
            differences::<TranslateRequest>("kivu.translate"),
        ),
    ];
    // A name that may be in `parameters`, too.
    insta::assert_snapshot!(lines(&found), @r#"("similarity", {"model"})"#);
}

/// Parameters in the model hub's bodies.
#[test]
fn the_tables_have_the_parameters_of_all_tasks() {
    let missing = |names: BTreeSet<String>, set: &str| {
        let listed: BTreeSet<&str> = known(set)
            .unwrap()
            .iter()
            .flat_map(|fields| fields.names())
            .collect();
        let missing = names
            .into_iter()
            .filter(|name| !listed.contains(name.as_str()));
        missing.collect::<BTreeSet<_>>()
    };
    let generation = GenerationOptions::names().iter().cloned().collect();
    let found = [
        (
            "classification",
            missing(
                properties::<ClassificationParameters>(),
                "body.classification",
            ),
        ),
        (
            "tokens",
            missing(properties::<TokenClassificationParameters>(), "body.tokens"),
        ),
        (
            "entities",
            missing(properties::<ZeroShotEntitiesParameters>(), "body.entities"),
        ),
        (
            "zero-shot",
            missing(properties::<ZeroShotParameters>(), "body.zero_shot"),
        ),
        ("generation", missing(generation, "body.generation")),
    ];
    insta::assert_snapshot!(lines(&found), @"");
}

#[test]
fn each_field_is_in_one_list() {
    for (api, body, known) in published() {
        let names: Vec<&str> = known.iter().flat_map(|fields| fields.names()).collect();
        let different: BTreeSet<&&str> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{api} {body}");
    }
}

/// The error's message, if a request is refused.
async fn refusal(path: &str, body: &Value) -> Option<String> {
    let (status, answer) = ask(path, body).await;
    let messages = [
        &answer["error"]["message"],
        &answer["error"],
        &answer["message"],
        &answer["detail"],
    ];
    let message = messages.into_iter().find_map(Value::as_str)?;
    Some(format!("{} {message}", status.as_u16()))
}

/// The smallest request for each body, with more fields.
fn requests() -> Vec<(&'static str, Value)> {
    let documents = json!({ "model": "ranking", "query": "cat", "documents": ["dog"] });
    let message = json!([{ "role": "user", "content": "the cat" }]);
    let similarity = json!({ "source_sentence": "cat", "sentences": ["dog"] });
    let infer = json!([{ "name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["cat"] }]);
    vec![
        ("/v1/embeddings", json!({ "input": "cat" })),
        ("/embed", json!({ "inputs": "cat" })),
        ("/predict", json!({ "inputs": "cat" })),
        (
            "/rerank",
            json!({ "query": "cat", "texts": ["dog"], "model": "ranking" }),
        ),
        ("/rerank", documents.clone()),
        ("/reranking", documents.clone()),
        ("/v1/rerank", documents.clone()),
        ("/v2/rerank", documents),
        (
            "/v1/score",
            json!({ "model": "ranking", "text_1": "cat", "text_2": "dog" }),
        ),
        ("/classify", json!({ "input": "cat" })),
        ("/similarity", json!({ "inputs": similarity })),
        ("/tokenize", json!({ "inputs": "cat" })),
        ("/decode", json!({ "ids": [7] })),
        ("/embedding", json!({ "content": "cat" })),
        ("/v1/embed", json!({ "texts": ["cat"] })),
        ("/v2/embed", json!({ "texts": ["cat"] })),
        ("/api/embed", json!({ "input": "cat" })),
        ("/api/embeddings", json!({ "prompt": "cat" })),
        ("/api/show", json!({ "model": "embedding" })),
        ("/model/embedding/invoke", json!({ "inputText": "cat" })),
        ("/model/embedding/invoke", json!({ "texts": ["cat"] })),
        (
            "/model/ranking/invoke",
            json!({ "query": "cat", "documents": ["dog"] }),
        ),
        (
            "/v2/translate",
            json!({ "text": ["cat"], "source_lang": "en", "target_lang": "pt" }),
        ),
        (
            "/translate",
            json!({ "q": "cat", "source": "en", "target": "pt" }),
        ),
        ("/translate", json!({ "inputs": "cat" })),
        ("/v1/chat/completions", json!({ "messages": message })),
        ("/v2/models/embedding/infer", json!({ "inputs": infer })),
        ("/vertex", json!({ "instances": [{ "inputs": "cat" }] })),
        ("/models/embedding", json!({ "inputs": "cat" })),
        ("/models/classification", json!({ "inputs": "cat" })),
        ("/models/token-classification", json!({ "inputs": "cat" })),
        (
            "/models/zero-shot",
            json!({ "inputs": "cat", "parameters": { "candidate_labels": "a, b", "hypothesis_template": "{}" } }),
        ),
        ("/models/translation", json!({ "inputs": "cat" })),
        (
            "/models/ranking",
            json!({ "inputs": { "query": "cat", "texts": ["dog"] } }),
        ),
    ]
}

fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[tokio::test]
async fn fields_that_clients_add_are_ignored() {
    let more = json!({
        "extra": 1, "user_id": "a", "meta_info": {}, "timeout_s": 3, "x": null, "id_": 7, "api_base": "",
        "custom_llm_provider": "a", "tags": ["a"], "source_type": "a", "trace_id": "a", "session_id": "a",
        "timeout": 3, "extra_headers": {}, "batch_size": 8, "max_retries": 2, "deployment": "a", "collection": "a",
        "namespace": "a", "language": "en", "version": 1, "chunk_size": 8, "dataset": "a", "description": "a",
        "stream": false,
    });
    for (path, body) in requests() {
        assert_eq!(refusal(path, &body).await, None, "{path} {body}");
        // Bedrock refuses unknown fields.
        if !path.starts_with("/model/") {
            let body = with(&body, &more);
            assert_eq!(refusal(path, &body).await, None, "{path} {body}");
        }
    }
}

#[tokio::test]
async fn misspelt_fields_are_refused_with_the_right_name() {
    let mut found = String::new();
    for (path, body) in requests() {
        // The first field with a long name, with an additional letter.
        let mut names = body.as_object().unwrap().keys();
        let Some(name) = names.find(|name| name.len() > 4) else {
            continue;
        };
        let wrong = format!("{name}x");
        let body = with(&body, &json!({ wrong: "a text" }));
        found += &format!(
            "{path}: {}\n",
            refusal(path, &body).await.unwrap_or_default()
        );
    }
    insta::assert_snapshot!(found, @r"
    /v1/embeddings: 422 `inputx` is not a field of this API; use `input`
    /embed: 422 `inputsx` is not a field of this API; use `inputs`
    /predict: 422 `inputsx` is not a field of this API; use `inputs`
    /rerank: 422 `modelx` is not a field of this API; use `model`
    /rerank: 422 `documentsx` is not a field of this API; use `documents`
    /reranking: 422 `documentsx` is not a field of this API; use `documents`
    /v1/rerank: 422 `documentsx` is not a field of this API; use `documents`
    /v2/rerank: 422 `documentsx` is not a field of this API; use `documents`
    /v1/score: 422 `modelx` is not a field of this API; use `model`
    /classify: 422 `inputx` is not a field of this API; use `input`
    /similarity: 422 `inputsx` is not a field of this API; use `inputs`
    /tokenize: 422 `inputsx` is not a field of this API; use `inputs`
    /embedding: 422 `contentx` is not a field of this API; use `content`
    /v1/embed: 422 `textsx` is not a field of this API; use `texts`
    /v2/embed: 422 `textsx` is not a field of this API; use `texts`
    /api/embed: 422 `inputx` is not a field of this API; use `input`
    /api/embeddings: 422 `promptx` is not a field of this API; use `prompt`
    /api/show: 422 `modelx` is not a field of this API; use `model`
    /model/embedding/invoke: 400 `inputTextx` is not a field of this API; use `inputText`
    /model/embedding/invoke: 400 `textsx` is not a field of this API; use `texts`
    /model/ranking/invoke: 400 `documentsx` is not a field of this API; use `documents`
    /v2/translate: 422 `source_langx` is not a field of this API; use `source_lang`
    /translate: 422 `sourcex` is not a field of this API; use `source`
    /translate: 422 `inputsx` is not a field of this API; use `inputs`
    /v1/chat/completions: 422 `messagesx` is not a field of this API; use `messages`
    /v2/models/embedding/infer: 400 `inputsx` is not a field of this API; use `inputs`
    /vertex: 422 `instancesx` is not a field of this API; use `instances`
    /models/embedding: 422 `inputsx` is not a field of this API; use `inputs`
    /models/classification: 422 `inputsx` is not a field of this API; use `inputs`
    /models/token-classification: 422 `inputsx` is not a field of this API; use `inputs`
    /models/zero-shot: 422 `inputsx` is not a field of this API; use `inputs`
    /models/translation: 422 `inputsx` is not a field of this API; use `inputs`
    /models/ranking: 422 `inputsx` is not a field of this API; use `inputs`
    ");
}

/// Options, in the smallest request for a route.
fn unsupported() -> Vec<(&'static str, Value)> {
    vec![
        ("/v1/rerank", json!({ "rank_fields": ["title"] })),
        ("/rerank", json!({ "rank_fields": ["title", "text"] })),
        ("/v2/rerank", json!({ "max_chunks_per_doc": 10 })),
        (
            "/v2/rerank",
            json!({ "relevant_spans": { "mode": "enabled" } }),
        ),
        ("/v1/embeddings", json!({ "return_multivector": true })),
        ("/v1/embeddings", json!({ "dimension": 2 })),
        ("/v1/embeddings", json!({ "embed_dtype": "float16" })),
        (
            "/v1/embeddings",
            json!({ "input": [{ "text": "cat", "image": "data:" }] }),
        ),
        ("/v1/embeddings", json!({ "modality": ["text", "image"] })),
        ("/v2/embed", json!({ "images": ["data:"] })),
        ("/v2/translate", json!({ "style_id": "a" })),
        ("/v2/translate", json!({ "custom_instructions": ["a"] })),
        ("/v2/translate", json!({ "translation_memory_id": "a" })),
        ("/v2/translate", json!({ "glossary_ids": ["a"] })),
        ("/v2/translate", json!({ "context": "a" })),
        ("/v2/translate", json!({ "tag_handling": "html" })),
        ("/v2/translate", json!({ "formality": "more" })),
        ("/translate", json!({ "format": "html" })),
        ("/v1/score", json!({ "max_tokens_per_query": 5 })),
        (
            "/classify",
            json!({ "messages": [] , "add_special_tokens": false }),
        ),
        ("/api/embed", json!({ "options": { "num_ctxx": 512 } })),
        (
            "/models/classification",
            json!({ "parameters": { "topk": 1 } }),
        ),
        (
            "/models/classification",
            json!({ "inputs": { "text": "cat", "text_par": "dog" } }),
        ),
        (
            "/models/classification",
            json!({ "inputs": [{ "text": "cat", "textPair": "dog" }] }),
        ),
        (
            "/models/classification",
            json!({ "parameters": { "return_all_scores": false } }),
        ),
        (
            "/models/token-classification",
            json!({ "parameters": { "grouped_entities": false } }),
        ),
        (
            "/models/embedding",
            json!({ "parameters": { "dimension": 1 } }),
        ),
        (
            "/v2/models/embedding/infer",
            json!({ "parameters": { "sequence_id": 7 } }),
        ),
        (
            "/v2/models/embedding/infer",
            json!({ "parameters": { "normalise": true } }),
        ),
        ("/v1/chat/completions", json!({ "stream": true })),
        ("/v1/chat/completions", json!({ "n": 2 })),
        (
            "/v1/chat/completions",
            json!({ "tools": [{}, { "type": "function" }] }),
        ),
        (
            "/v1/chat/completions",
            json!({ "response_format": { "type": "json_object" } }),
        ),
        ("/v1/chat/completions", json!({ "redact": true })),
        ("/v1/chat/completions", json!({ "patterns": "all" })),
        ("/embedding", json!({ "image_data": [{ "id": 1 }] })),
        ("/vertex", json!({ "parameters": { "truncate": true } })),
        (
            "/api/pull",
            json!({ "model": "embedding", "insecure": true }),
        ),
    ]
}

#[tokio::test]
async fn unsupported_options_are_refused_by_name() {
    let mut found = String::new();
    for (path, more) in unsupported() {
        let known = requests().into_iter().find(|(known, _)| *known == path);
        let body = with(&known.map_or(json!({}), |(_, body)| body), &more);
        found += &format!(
            "{path}: {}\n",
            refusal(path, &body).await.unwrap_or_default()
        );
    }
    insta::assert_snapshot!(found, @r"
    /v1/rerank: 422 `rank_fields` is not supported: send documents as texts with these fields
    /rerank: 422 `rank_fields` is not supported: send documents as texts with these fields
    /v2/rerank: 422 `max_chunks_per_doc: 10` is not supported: a document is read up to the model's token limit
    /v2/rerank: 422 `relevant_spans` is not supported: documents are ranked as a whole
    /v1/embeddings: 422 `return_multivector: true` is not supported: `/embed_all` returns a vector per token
    /v1/embeddings: 422 `dimension` is not a field of this API; use `dimensions`
    /v1/embeddings: 422 `embed_dtype` is not supported: send `output_dtype`
    /v1/embeddings: 422 `input[0].image` is not supported: models read texts
    /v1/embeddings: 422 `modality` is not supported: models read texts
    /v2/embed: 422 `images` is not supported: models read texts
    /v2/translate: 422 `style_id` is not supported: leave it out
    /v2/translate: 422 `custom_instructions` is not supported: leave it out
    /v2/translate: 422 `translation_memory_id` is not supported: leave it out
    /v2/translate: 422 `glossary_ids` is not supported: the models have no glossaries
    /v2/translate: 422 `context` is not supported: the models read each text by itself
    /v2/translate: 422 `tag_handling` is not supported: send texts without tags
    /v2/translate: 422 `formality` is not supported: send `default`, `prefer_more` or `prefer_less`
    /translate: 422 `format` is not supported: send texts without tags
    /v1/score: 422 `max_tokens_per_query: 5` is not supported: a query is read up to the model's token limit
    /classify: 422 `add_special_tokens: false` is not supported: leave it out
    /api/embed: 422 `options.num_ctxx` is not a field of this API; use `num_ctx`
    /models/classification: 422 `parameters.topk` is not a field of this API; use `top_k`
    /models/classification: 422 `inputs.text_par` is not a field of this API; use `text_pair`
    /models/classification: 422 `inputs[0].textPair` is not a field of this API; use `text_pair`
    /models/classification: 422 `parameters.return_all_scores: false` is not supported: send `top_k` 1 for the best label
    /models/token-classification: 422 `parameters.grouped_entities: false` is not supported: send an `aggregation_strategy`
    /models/embedding: 422 `parameters.dimension` is not a field of this API; use `dimensions`
    /v2/models/embedding/infer: 400 `parameters.sequence_id: 7` is not supported: each request is independent
    /v2/models/embedding/infer: 400 `parameters.normalise` is not a field of this API; use `normalize`
    /v1/chat/completions: 422 `stream: true` is not supported: models here find entities and generate no text
    /v1/chat/completions: 422 `n: 2` is not supported: models here find entities and generate no text
    /v1/chat/completions: 422 `tools` is not supported: models here find entities and generate no text
    /v1/chat/completions: 422 `response_format` is not supported: models here find entities and generate no text
    /v1/chat/completions: 422 `redact: true` is not supported: this route does not read it; leave it out
    /v1/chat/completions: 422 `patterns` is not supported: this route does not read it; leave it out
    /embedding: 422 `image_data` is not supported: models read texts
    /vertex: 422 `parameters` is not supported: put them into each of the `instances`
    /api/pull: 422 `insecure: true` is not supported: the hub's certificate is always checked
    ");
}

#[tokio::test]
async fn values_that_ask_for_nothing_are_accepted() {
    for (path, more) in [
        (
            "/v1/rerank",
            json!({ "rank_fields": ["text"], "max_chunks_per_doc": 1, "relevant_spans": { "mode": "disabled" } }),
        ),
        (
            "/v1/embeddings",
            json!({ "return_multivector": false, "modality": ["text"], "embed_dtype": "float32", "user": "me" }),
        ),
        ("/v2/embed", json!({ "images": [], "priority": 3 })),
        (
            "/v2/translate",
            json!({ "formality": "prefer_more", "context": "", "preserve_formatting": true, "tag_handling": null }),
        ),
        ("/translate", json!({ "format": "text", "api_key": "" })),
        (
            "/v1/chat/completions",
            json!({ "stream": false, "n": 1, "tools": [], "response_format": { "type": "text" }, "temperature": 0.5 }),
        ),
        (
            "/api/embed",
            json!({ "options": { "temperature": 0.1, "num_ctx": 2048, "num_gqa": 8 }, "keep_alive": "5m" }),
        ),
        (
            "/models/embedding",
            json!({ "options": { "wait_for_model": true } }),
        ),
        (
            "/models/zero-shot",
            json!({ "options": { "use_cache": false } }),
        ),
    ] {
        let known = requests().into_iter().find(|(known, _)| *known == path);
        let body = with(&known.unwrap().1, &more);
        assert_eq!(refusal(path, &body).await, None, "{path} {body}");
    }
}

/// Options that other routes have, also misspelt, and the same in the model hub's `parameters`.
fn foreign() -> Vec<(&'static str, Value)> {
    let zero_shot = |name: &str, value: Value| json!({ "candidate_labels": "a, b", name: value });
    vec![
        ("/v1/embeddings", json!({ "truncation_direction": "left" })),
        ("/v1/embeddings", json!({ "outputs": ["sparse"] })),
        ("/v1/embeddings", json!({ "texts": ["dog"] })),
        ("/v1/embeddings", json!({ "task_type": "search_query" })),
        ("/v1/embeddings", json!({ "inputText": "dog" })),
        ("/embed", json!({ "text": "dog" })),
        ("/embed", json!({ "max_length": 8 })),
        ("/embed", json!({ "input_type": "query" })),
        ("/embed", json!({ "output_dimension": 1 })),
        ("/embed", json!({ "truncate_dim": 1 })),
        ("/embed", json!({ "normalize_embeddings": false })),
        ("/embed", json!({ "truncation": false })),
        ("/embed", json!({ "late_chunking": true })),
        ("/embed", json!({ "parameters": { "normalize": false } })),
        ("/similarity", json!({ "input_type": "query" })),
        ("/v1/embed", json!({ "prompt_name": "query" })),
        ("/v2/embed", json!({ "dimensions": 1 })),
        ("/v2/embed", json!({ "normalize": false })),
        ("/api/embed", json!({ "prompt": "dog" })),
        ("/api/embed", json!({ "output_dimension": 1 })),
        ("/api/embed", json!({ "input_type": "query" })),
        ("/api/embed", json!({ "taskType": "RETRIEVAL_QUERY" })),
        ("/api/embeddings", json!({ "input": "dog" })),
        ("/api/embeddings", json!({ "dimensions": 1 })),
        ("/embedding", json!({ "dimensions": 1 })),
        ("/v1/rerank", json!({ "truncation_direction": "left" })),
        ("/v2/rerank", json!({ "return_text": true })),
        ("/v1/score", json!({ "raw_scores": true })),
        ("/v1/score", json!({ "top_n": 1 })),
        ("/predict", json!({ "top_k": 1 })),
        ("/predict", json!({ "parameters": { "top_k": 1 } })),
        ("/classify", json!({ "function_to_apply": "none" })),
        ("/v1/chat/completions", json!({ "redact": true })),
        ("/v1/chat/completions", json!({ "candidate_labels": ["a"] })),
        ("/v2/translate", json!({ "source": "en" })),
        ("/v2/translate", json!({ "model": "translation" })),
        (
            "/models/embedding",
            json!({ "parameters": { "input_type": "query" } }),
        ),
        ("/models/embedding", json!({ "output_dimension": 1 })),
        (
            "/models/classification",
            json!({ "parameters": { "raw_scores": true } }),
        ),
        (
            "/models/token-classification",
            json!({ "parameters": { "threshold": 0.9 } }),
        ),
        ("/models/token-classification", json!({ "flat_ner": false })),
        (
            "/models/zero-shot",
            json!({ "parameters": zero_shot("top_k", json!(1)) }),
        ),
        (
            "/models/zero-shot",
            json!({ "parameters": zero_shot("threshold", json!(0.5)) }),
        ),
        (
            "/models/zero-shot",
            json!({ "parameters": zero_shot("truncation_direction", json!("left")) }),
        ),
        ("/models/ranking", json!({ "parameters": { "top_k": 1 } })),
        ("/models/translation", json!({ "split": "never" })),
        // Other work.
        ("/embed", json!({ "top_k": 1 })),
        ("/embed", json!({ "redact": true })),
        ("/v1/rerank", json!({ "dimensions": 1 })),
        ("/rerank", json!({ "prompt_name": "query" })),
        ("/predict", json!({ "threshold": 0.5 })),
        ("/predict", json!({ "text_pair": "dog" })),
        ("/similarity", json!({ "return_text": true })),
        ("/similarity", json!({ "output_dtype": "binary" })),
        (
            "/similarity",
            json!({ "parameters": { "labels": ["a"], "outputs": ["dense"] } }),
        ),
        ("/tokenize", json!({ "input_type": "query" })),
        ("/tokenize", json!({ "truncate": false })),
        ("/decode", json!({ "add_special_tokens": false })),
        ("/translate", json!({ "dimensions": 1 })),
        (
            "/models/classification",
            json!({ "parameters": { "threshold": 0.5 } }),
        ),
        (
            "/models/token-classification",
            json!({ "parameters": { "hypothesis_template": "{}" } }),
        ),
        // Misspelt.
        ("/embed", json!({ "outputDimension": 1 })),
        ("/rerank", json!({ "topK": 1 })),
        ("/v1/embeddings", json!({ "return_document": true })),
        ("/v2/rerank", json!({ "candidate_label": ["a"] })),
    ]
}

/// The error's message, if a route's smallest request with `more` fields is refused.
async fn refusal_with(path: &str, more: &Value) -> Option<String> {
    let known = requests().into_iter().find(|(known, _)| *known == path);
    refusal(path, &with(&known.unwrap().1, more)).await
}

#[tokio::test]
async fn fields_of_the_bodys_other_objects_are_refused_with_their_place() {
    let tensor = |field: &str, value: Value| {
        let mut tensor =
            json!({ "name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["cat"] });
        tensor[field] = value;
        json!({ "inputs": [tensor] })
    };
    let sentences = |field: &str, value: Value| {
        let mut inputs = json!({ "source_sentence": "cat", "sentences": ["dog"] });
        inputs[field] = value;
        json!({ "inputs": inputs })
    };
    let (infer, one) = ("/v2/models/embedding/infer", json!({ "dimensions": 1 }));
    let mut found = String::new();
    for (path, more) in [
        ("/vertex", json!({ "model": "classification" })),
        ("/vertex", json!({ "dimensions": 1 })),
        ("/vertex", json!({ "truncate": false })),
        ("/vertex", json!({ "parameters": one })),
        (infer, json!({ "dimensions": 1 })),
        (infer, json!({ "max_new_tokens": 1 })),
        (infer, json!({ "model": "classification" })),
        (infer, tensor("normalize", json!(false))),
        (infer, tensor("parameters", one.clone())),
        (
            infer,
            json!({ "outputs": [{ "name": "embedding", "parameters": one }] }),
        ),
        ("/similarity", sentences("truncate", json!(false))),
        ("/similarity", sentences("model", json!("another"))),
        ("/api/embed", json!({ "options": one })),
        ("/models/embedding", json!({ "options": one })),
        (
            "/models/classification",
            json!({ "inputs": { "text": "cat", "top_k": 1 } }),
        ),
        ("/models/embedding", json!({ "extra_body": one })),
        ("/v1/embeddings", json!({ "extra_body": one })),
        ("/v1/rerank", json!({ "parameters": { "top_n": 1 } })),
        (
            "/tokenize",
            json!({ "parameters": { "add_special_tokens": false } }),
        ),
    ] {
        let refusal = refusal_with(path, &more).await.unwrap_or_default();
        found += &format!("{path}: {refusal}\n");
    }
    insta::assert_snapshot!(found, @r"
    /vertex: 422 `model` is not supported: put it into each of the `instances`
    /vertex: 422 `dimensions: 1` is not supported: put it into each of the `instances`
    /vertex: 422 `truncate: false` is not supported: put it into each of the `instances`
    /vertex: 422 `parameters` is not supported: put them into each of the `instances`
    /v2/models/embedding/infer: 400 `dimensions: 1` is not supported: put it into `parameters`
    /v2/models/embedding/infer: 400 `max_new_tokens: 1` is not supported: put it into `parameters`
    /v2/models/embedding/infer: 400 `model` is not supported: name the model in the path
    /v2/models/embedding/infer: 400 `inputs[0].normalize: false` is not supported: put it into the request's `parameters`
    /v2/models/embedding/infer: 400 `inputs[0].parameters.dimensions: 1` is not supported: put it into the request's `parameters`
    /v2/models/embedding/infer: 400 `outputs[0].parameters.dimensions: 1` is not supported: put it into the request's `parameters`
    /similarity: 422 `inputs.truncate: false` is not supported: put it beside `inputs`
    /similarity: 422 `inputs.model` is not supported: put it beside `inputs`
    /api/embed: 422 `options.dimensions: 1` is not supported: put it beside `options`
    /models/embedding: 422 `options.dimensions: 1` is not supported: put it into `parameters`
    /models/classification: 422 `inputs.top_k: 1` is not supported: put it into `parameters`
    /models/embedding: 422 `extra_body` is not supported: put its fields into the body itself
    /v1/embeddings: 422 `extra_body` is not supported: put its fields into the body itself
    /v1/rerank: 422 `parameters` is not supported: put its fields into the body itself
    /tokenize: 422 `parameters` is not supported: put its fields into the body itself
    ");
    for (path, more) in [
        ("/vertex", json!({ "parameters": null, "truncate": true })),
        ("/v1/embeddings", json!({ "extra_body": {} })),
        (
            "/models/embedding",
            json!({ "options": { "wait_for_model": true } }),
        ),
        ("/api/embed", json!({ "options": { "top_k": 5 } })),
    ] {
        assert_eq!(refusal_with(path, &more).await, None, "{path} {more}");
    }
}

#[tokio::test]
async fn fields_of_other_routes_are_refused_with_the_right_name() {
    let mut found = String::new();
    for (path, more) in foreign() {
        let refusal = refusal_with(path, &more).await.unwrap_or_default();
        found += &format!("{path}: {refusal}\n");
    }
    insta::assert_snapshot!(found, @r"
    /v1/embeddings: 422 `truncation_direction` is not supported: use `truncation_side`
    /v1/embeddings: 422 `outputs` is not supported: this route does not read it; leave it out
    /v1/embeddings: 422 `texts` is not supported: use `input`
    /v1/embeddings: 422 `task_type` is not supported: use `prompt_name`
    /v1/embeddings: 422 `inputText` is not supported: use `input`
    /embed: 422 `text` is not supported: use `inputs`
    /embed: 422 `max_length: 8` is not supported: this route does not read it; leave it out
    /embed: 422 `input_type` is not supported: use `prompt_name`
    /embed: 422 `output_dimension: 1` is not supported: use `dimensions`
    /embed: 422 `truncate_dim: 1` is not supported: use `dimensions`
    /embed: 422 `normalize_embeddings: false` is not supported: use `normalize`
    /embed: 422 `truncation: false` is not supported: use `truncate`
    /embed: 422 `late_chunking: true` is not supported: this route does not read it; leave it out
    /embed: 422 `parameters` is not supported: put its fields into the body itself
    /similarity: 422 `input_type` is not supported: use `prompt_name`
    /v1/embed: 422 `prompt_name` is not supported: use `input_type`
    /v2/embed: 422 `dimensions: 1` is not supported: use `output_dimension`
    /v2/embed: 422 `normalize: false` is not supported: this route does not read it; leave it out
    /api/embed: 422 `prompt` is not supported: use `input`
    /api/embed: 422 `output_dimension: 1` is not supported: use `dimensions`
    /api/embed: 422 `input_type` is not supported: put the role after the model's name, as in `NAME:query`
    /api/embed: 422 `taskType` is not supported: put the role after the model's name, as in `NAME:query`
    /api/embeddings: 422 `input` is not supported: use `prompt`
    /api/embeddings: 422 `dimensions: 1` is not supported: this route does not read it; leave it out
    /embedding: 422 `dimensions: 1` is not supported: this route does not read it; leave it out
    /v1/rerank: 422 `truncation_direction` is not supported: use `truncation_side`
    /v2/rerank: 422 `return_text: true` is not supported: use `return_documents`
    /v1/score: 422 `raw_scores: true` is not supported: use `use_activation`
    /v1/score: 422 `top_n: 1` is not supported: this route does not read it; leave it out
    /predict: 422 `top_k: 1` is not supported: this route does not read it; leave it out
    /predict: 422 `parameters` is not supported: put its fields into the body itself
    /classify: 422 `function_to_apply` is not supported: use `use_activation`
    /v1/chat/completions: 422 `redact: true` is not supported: this route does not read it; leave it out
    /v1/chat/completions: 422 `candidate_labels` is not supported: use `labels`
    /v2/translate: 422 `source` is not supported: use `source_lang`
    /v2/translate: 422 `model` is not supported: this route does not read it; leave it out
    /models/embedding: 422 `parameters.input_type` is not supported: use `prompt_name`
    /models/embedding: 422 `output_dimension: 1` is not supported: use `dimensions`
    /models/classification: 422 `parameters.raw_scores: true` is not supported: use `function_to_apply`
    /models/token-classification: 422 `parameters.threshold: 0.9` is not supported: this route does not read it; leave it out
    /models/token-classification: 422 `flat_ner: false` is not supported: this route does not read it; leave it out
    /models/zero-shot: 422 `parameters.top_k: 1` is not supported: this route does not read it; leave it out
    /models/zero-shot: 422 `parameters.threshold: 0.5` is not supported: this route does not read it; leave it out
    /models/zero-shot: 422 `parameters.truncation_direction` is not supported: use `truncate`
    /models/ranking: 422 `parameters.top_k: 1` is not supported: use `top_n`
    /models/translation: 422 `split` is not supported: this route does not read it; leave it out
    /embed: 422 `top_k: 1` is not supported: this route does not read it; leave it out
    /embed: 422 `redact: true` is not supported: this route does not read it; leave it out
    /v1/rerank: 422 `dimensions: 1` is not supported: this route does not read it; leave it out
    /rerank: 422 `prompt_name` is not supported: this route does not read it; leave it out
    /predict: 422 `threshold: 0.5` is not supported: this route does not read it; leave it out
    /predict: 422 `text_pair` is not supported: this route does not read it; leave it out
    /similarity: 422 `return_text: true` is not supported: this route does not read it; leave it out
    /similarity: 422 `output_dtype` is not supported: this route does not read it; leave it out
    /similarity: 422 `parameters.labels` is not supported: this route does not read it; leave it out
    /tokenize: 422 `input_type` is not supported: use `prompt_name`
    /tokenize: 422 `truncate: false` is not supported: this route does not read it; leave it out
    /decode: 422 `add_special_tokens: false` is not supported: this route does not read it; leave it out
    /translate: 422 `dimensions: 1` is not supported: this route does not read it; leave it out
    /models/classification: 422 `parameters.threshold: 0.5` is not supported: this route does not read it; leave it out
    /models/token-classification: 422 `parameters.hypothesis_template` is not supported: this route does not read it; leave it out
    /embed: 422 `outputDimension: 1` is not supported: use `dimensions`
    /rerank: 422 `topK: 1` is not supported: use `top_n`
    /v1/embeddings: 422 `return_document: true` is not supported: this route does not read it; leave it out
    /v2/rerank: 422 `candidate_label` is not supported: this route does not read it; leave it out
    ");
}

#[tokio::test]
async fn fields_of_other_routes_may_ask_for_what_a_route_does() {
    for (path, more) in [
        (
            "/v1/embeddings",
            json!({ "truncation_direction": "right", "outputs": ["dense"], "keep_alive": "5m" }),
        ),
        (
            "/embed",
            json!({ "truncation": true, "late_chunking": false, "parameters": {}, "options": { "use_cache": false } }),
        ),
        (
            "/v2/embed",
            json!({ "normalize": true, "dimensions": null, "encoding_format": "float" }),
        ),
        ("/api/embed", json!({ "prompt": "", "normalize": true })),
        (
            "/v1/rerank",
            json!({ "truncation_direction": "Right", "return_text": false }),
        ),
        ("/predict", json!({ "use_activation": true, "top_k": null })),
        (
            "/models/token-classification",
            json!({ "flat_ner": true, "multi_label": false }),
        ),
    ] {
        let known = requests().into_iter().find(|(known, _)| *known == path);
        let body = with(&known.unwrap().1, &more);
        assert_eq!(refusal(path, &body).await, None, "{path} {body}");
    }
}

/// Each option that a route for vectors reads is read or refused by the others.
#[tokio::test]
async fn no_option_for_vectors_is_ignored() {
    let options = [
        ("dimensions", json!(1)),
        ("output_dimension", json!(1)),
        ("normalize", json!(false)),
        ("normalized", json!(false)),
        // The model's vectors do not depend on the text, but routes that read these refuse them.
        ("prompt", json!("dog ".repeat(5_000))),
        ("prompt_name", json!("unknown")),
        ("instruction", json!("dog")),
        ("input_type", json!("unknown")),
        ("task", json!("unknown")),
        ("encoding_format", json!("base64")),
        ("embedding_type", json!("base64")),
        ("output_dtype", json!("binary")),
        ("embd_normalize", json!(-1)),
        ("truncate_dim", json!(1)),
        ("embedding_dimension", json!(1)),
        ("normalize_embeddings", json!(false)),
        ("max_length", json!(1)),
    ];
    let routes = [
        ("/v1/embeddings", json!({ "input": "cat" })),
        ("/embed", json!({ "inputs": "cat" })),
        ("/v1/embed", json!({ "texts": ["cat"] })),
        ("/v2/embed", json!({ "texts": ["cat"] })),
        ("/api/embed", json!({ "input": "cat" })),
        ("/embedding", json!({ "content": "cat" })),
        ("/models/embedding", json!({ "inputs": "cat" })),
        ("/", json!({ "inputs": "cat" })),
    ];
    let result = |answer: Value| {
        let parts = ["data", "embeddings"].map(|part| answer.get(part).cloned());
        parts.into_iter().flatten().next().unwrap_or(answer)
    };
    for (path, body) in routes {
        let expected = result(ask(path, &body).await.1);
        for (name, value) in &options {
            let (status, answer) = ask(path, &with(&body, &json!({ *name: value }))).await;
            let is_ignored = status == 200 && result(answer) == expected;
            assert!(!is_ignored, "{path} {name}");
        }
    }
}

/// `transformers` renamed the parameter.
#[tokio::test]
async fn multi_class_is_multi_label() {
    let scores = async |name: &str, value: bool| {
        let parameters = json!({ "candidate_labels": ["a", "b", "c"], "hypothesis_template": "{}", name: value });
        let body = json!({ "inputs": "cat", "parameters": parameters });
        let (status, answer) = ask("/models/zero-shot", &body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };
    assert_eq!(
        scores("multi_class", true).await,
        scores("multi_label", true).await
    );
    assert_ne!(
        scores("multi_class", true).await,
        scores("multi_class", false).await
    );
    let both = json!({ "candidate_labels": ["a"], "multi_class": true, "multi_label": false });
    let body = json!({ "inputs": "cat", "parameters": both });
    let found = refusal("/models/zero-shot", &body).await.unwrap();
    insta::assert_snapshot!(found, @"422 expected each field once in `parameters`, but found `multi_label` twice");
}
