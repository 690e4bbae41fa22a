//! What becomes of popular models: whether `kivu build` accepts the settings of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use kivu::onnx::Runtime;
use safetensors::{Dtype, tensor::TensorView};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::models::{build_request, fixtures, request, runtime};

/// A repository's settings, as in its files.
#[derive(Deserialize)]
struct Published {
    files: BTreeMap<String, Value>,
}

/// A fixture with a tokenizer of the kind that a class has.
const TOKENIZERS: [(&str, &str); 13] = [
    ("AlbertTokenizer", "tiny-albert"),
    ("CamembertTokenizer", "tiny-xlm-roberta"),
    ("GemmaTokenizer", "tiny-gemma3"),
    ("Qwen2Tokenizer", "tiny-qwen3"),
    ("RobertaTokenizer", "tiny-roberta"),
    ("T5Tokenizer", "tiny-sentence-t5"),
    ("XLMRobertaTokenizer", "tiny-xlm-roberta"),
    ("bart", "tiny-roberta"),
    ("camembert", "tiny-xlm-roberta"),
    ("openai_privacy_filter", "tiny-privacy-filter"),
    ("roberta", "tiny-roberta"),
    ("ultrabert", "tiny-ultrabert"),
    ("xlm-roberta", "tiny-xlm-roberta"),
];

/// Code that Kivu knows, in place of which models have a fixture's, which it knows as well.
const CODE: [(&str, &str); 3] = [
    ("modeling.JinaForRanking", "tiny-jina-reranker-v3"),
    ("modeling.PPLXQwen3Model", "tiny-pplx"),
    ("modeling_qwen3_bidirectional.", "tiny-voyage"),
];

/// A tokenizer of the kind of the model's, with the tokens that its settings name.
fn tokenizer(files: &BTreeMap<String, Value>) -> Value {
    let field = |file: &str, key: &str| files.get(file).and_then(|file| file[key].as_str());
    let kinds = [
        field("tokenizer_config.json", "tokenizer_class"),
        field("config.json", "tokenizer_class"),
        field("config.json", "model_type"),
    ];
    let kind = |kind: &str| kind.trim_end_matches("Fast").to_owned();
    let mut fixture = kinds.into_iter().flatten().filter_map(|found| {
        let known = TOKENIZERS.iter().find(|(name, _)| kind(found) == *name)?;
        Some(known.1)
    });
    let fixture = fixture.next().unwrap_or("tiny-bert");
    let path = fixtures()
        .join("models")
        .join(fixture)
        .join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut known: BTreeSet<String> = added
        .iter()
        .map(|token| token["content"].as_str().unwrap().to_owned())
        .collect();
    // The answer of bge-reranker-v2-gemma is a token of its vocabulary.
    let tokens = named_tokens(files)
        .into_iter()
        .chain((fixture == "tiny-gemma3").then(|| "Yes".to_owned()));
    for (place, token) in tokens.enumerate() {
        if known.insert(token.clone()) {
            added.push(json!({
                "id": 100_000 + place, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }));
        }
    }
    tokenizer
}

/// The tokens in settings of a tokenizer.
fn named_tokens(files: &BTreeMap<String, Value>) -> Vec<String> {
    let names = ["tokenizer_config.json", "special_tokens_map.json"];
    let settings = names
        .iter()
        .filter_map(|name| files.get(*name)?.as_object());
    let mut tokens = Vec::new();
    for (key, value) in settings.flatten() {
        let values = match value {
            Value::Array(list) => list.iter().collect(),
            Value::Object(entries) if key == "added_tokens_decoder" => entries.values().collect(),
            other => vec![other],
        };
        if ["_token", "_tokens", "_decoder"]
            .iter()
            .any(|end| key.ends_with(end))
        {
            let content =
                |value: &Value| Some(value["content"].as_str().or(value.as_str())?.to_owned());
            tokens.extend(values.into_iter().filter_map(content));
        }
    }
    tokens
}

/// What becomes of a model: its settings are accepted if nothing but weights and vocabulary is missing.
fn outcome(
    repository: &str,
    files: &BTreeMap<String, Value>,
    task: Option<&str>,
    runtime: Runtime,
) -> String {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join(repository.split_once('/').unwrap().1);
    for (name, content) in files {
        let path = source.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content.to_string()).unwrap();
    }
    for (code, fixture) in CODE {
        if files["config.json"].to_string().contains(code) {
            let fixture = fixtures().join("models").join(fixture);
            for file in fs::read_dir(fixture).unwrap().map(Result::unwrap) {
                if file.path().extension().is_some_and(|end| end == "py") {
                    fs::copy(file.path(), source.join(file.file_name())).unwrap();
                }
            }
        }
    }
    write_placeholder(&source);
    let mut request = request(source.clone(), folder.path().join("out"), None);
    fs::write(source.join("tokenizer.json"), tokenizer(files).to_string()).unwrap();
    request.task = task.map(|task| task.parse().unwrap());
    let refusal = build_request(&request, runtime).unwrap_err();
    let refusal = refusal
        .chain()
        .replace(&source.display().to_string(), "[folder]");
    // Without the list of all families, or the way to build a model anyway.
    let refusal = match refusal.split_once("; supported: `albert`") {
        Some((problem, families)) => {
            let (_, reason) = families.split_once("; ").unwrap();
            format!("{}; {reason}", problem.rsplit(": ").next().unwrap())
        }
        None => refusal.split("; ").next().unwrap().to_owned(),
    };
    let is_accepted =
        refusal.contains("expected the weight `") && refusal.ends_with("found no such weight");
    let task = task.map(|task| format!(" for {task}")).unwrap_or_default();
    match is_accepted {
        true => format!("builds{task}"),
        false => format!("refused{task}: {refusal}"),
    }
}

/// Writes a weight that no model has.
fn write_placeholder(folder: &Path) {
    let zero = [0; 4];
    let weight = TensorView::new(Dtype::F32, vec![1], &zero).unwrap();
    let weights = safetensors::serialize([("placeholder", weight)], None).unwrap();
    fs::write(folder.join("model.safetensors"), weights).unwrap();
}

#[test]
fn popular_models_build_or_are_refused_for_a_reason() {
    let Some(runtime) = runtime() else { return };
    let published = fixtures().join("published");
    let read = |name: &str| -> BTreeMap<String, Published> {
        serde_json::from_slice(&fs::read(published.join(name)).unwrap()).unwrap()
    };
    let mut models = read("models.json");
    models.extend(read("refused.json"));
    let card = fs::read_to_string(published.join("report_card.txt")).unwrap();
    let lines: Vec<&str> = card.lines().filter(|line| !line.starts_with('#')).collect();
    let found: Vec<String> = lines
        .iter()
        .map(|line| {
            let (name, expected) = line.split_once(": ").unwrap();
            let task = expected.split(": ").next().unwrap().split_once(" for ");
            let files = &models[name].files;
            format!(
                "{name}: {}",
                outcome(name, files, task.map(|(_, task)| task), runtime)
            )
        })
        .collect();
    assert_eq!(lines.len(), 51);
    let differing: Vec<&String> = found
        .iter()
        .zip(&lines)
        .filter(|(found, line)| found != *line)
        .map(|(found, _)| found)
        .collect();
    assert!(differing.is_empty(), "{differing:#?}");
}
