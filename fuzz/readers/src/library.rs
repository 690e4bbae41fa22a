//! Readers for configuration, manifests, tokenizers and schemas.

use std::{collections::BTreeMap, sync::OnceLock};

use kivu::{
    config::Config,
    names::{named, names},
    pipeline::entities::zero_shot_entities::ZeroShotEntitiesSettings,
    repository::Manifest,
    task::extraction::{SchemaForm, read},
    tokenizer::{Side, SpecialTokens, Tokenizer, Truncation, WindowOptions},
};

/// `kivu.toml`, and an environment after a line of dashes.
pub fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (file, environment) = text.split_once("\n---\n").unwrap_or((&text, ""));
    let variables = environment.lines().filter_map(|line| line.split_once('='));
    let variables: BTreeMap<_, _> = variables
        .map(|(name, value)| (format!("KIVU_{name}"), value.to_owned()))
        .collect();
    let Ok(folder) = tempfile::tempdir() else {
        return;
    };
    let path = folder.path().join("kivu.toml");
    if std::fs::write(&path, file).is_ok() {
        // An error is a valid outcome, here and below.
        let _ = Config::load(Some(&path), &variables);
    }
}

/// A manifest: serializing the parsed manifest and parsing it again gives the same.
pub fn manifest(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(manifest) = Manifest::parse(text) else {
        return;
    };
    for name in manifest
        .files
        .iter()
        .map(|file| &file.name)
        .chain([&manifest.graph])
    {
        assert!(
            !name.starts_with('/') && !name.split('/').any(|part| part == ".."),
            "a path out of the bundle: {name}"
        );
    }
    let Ok(written) = manifest.to_text() else {
        return;
    };
    let again = Manifest::parse(&written).and_then(|manifest| manifest.to_text());
    assert_eq!(again.ok(), Some(written), "the manifest changed");
}

/// A `tokenizer.json`, directly and converted to a trie.
pub fn tokenizer(bytes: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_json(bytes) {
        tokenize(&tokenizer);
    }
    if let Ok(Some(made)) = Tokenizer::compile(bytes) {
        pieces(&made);
    }
}

/// A tokenizer with a trie.
pub fn pieces(bytes: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_compiled(bytes.to_vec()) {
        tokenize(&tokenizer);
    }
}

/// A label, and a text after the first line, for a model that reads labels in a schema.
pub fn schema(bytes: &[u8]) {
    const FILE: &[u8] =
        include_bytes!("../../../tests/fixtures/models/tiny-gliner2/tokenizer.json");
    const MAX_TOKENS: usize = 64;
    static TOKENIZER: OnceLock<Option<Tokenizer>> = OnceLock::new();
    let Some(tokenizer) = TOKENIZER.get_or_init(|| Tokenizer::from_json(FILE).ok()) else {
        return;
    };
    let text = String::from_utf8_lossy(bytes);
    let (label, text) = text.split_once('\n').unwrap_or(("person", &text));
    let settings = ZeroShotEntitiesSettings {
        output: "logits".to_owned(),
        schema_token: Some("[P]".to_owned()),
        label_token: "[E]".to_owned(),
        separator: "[SEP_TEXT]".to_owned(),
        max_entity_words: Some(4),
        label_encoder: None,
        max_words: MAX_TOKENS,
        max_tokens: MAX_TOKENS,
    };
    let Ok(prompt) = settings.prompt(&[label.to_owned()], tokenizer) else {
        return;
    };
    let characters = text.chars().count();
    let truncated = WindowOptions::whole(Truncation::At(Side::Right), 1);
    for options in [
        truncated,
        WindowOptions {
            stride: Some(2),
            max_windows: 1000,
            ..truncated
        },
    ] {
        let Ok(windows) = tokenizer.word_windows(text, &prompt, MAX_TOKENS, options) else {
            continue;
        };
        for window in windows {
            assert!(window.encoding.ids.len() <= MAX_TOKENS, "too many tokens");
            let spans: Vec<(usize, usize)> = window.spans.into_iter().flatten().collect();
            assert!(
                spans
                    .iter()
                    .all(|(start, end)| start <= end && *end <= characters),
                "{spans:?}"
            );
            assert!(
                spans.windows(2).all(|pair| pair[0].1 <= pair[1].0),
                "{spans:?}"
            );
        }
    }
}

fn tokenize(tokenizer: &Tokenizer) {
    for text in ["Hello, wörld! [SEP] a\u{b}b", "", "\u{0}\u{10ffff} 漢字 👩‍👩‍👧"] {
        if let Ok(tokens) = tokenizer.tokens(text, SpecialTokens::Added) {
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            let _ = tokenizer.decode(&ids, true);
        }
        if let (Ok(tokens), Ok(ids)) = (
            tokenizer.tokens(text, SpecialTokens::LeftOut),
            tokenizer.ids(text),
        ) {
            assert!(
                tokens.iter().map(|token| token.id).eq(ids),
                "other ids without spans"
            );
        }
    }
}

/// A schema in any form: an error is a valid outcome, and so is a schema without labels.
pub fn extraction(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(value) = serde_json::from_str(text) else {
        return;
    };
    for form in names::<SchemaForm>().iter().filter_map(|name| named(name)) {
        if let Ok(schema) = read(form, &value) {
            assert!(schema.labels() > 0, "a schema without labels");
        }
    }
}
