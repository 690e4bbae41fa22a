//! What settings change in a tokenizer.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::*;

/// Reads a tokenizer with these settings and a post-processor that adds nothing.
fn read(config: &Value) -> Result<Map<String, Value>> {
    read_of_model("llama", config)
}

fn read_of_model(model_type: &str, config: &Value) -> Result<Map<String, Value>> {
    let folder = tempfile::tempdir().unwrap();
    let added = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    let file = json!({
        "version": "1.0", "added_tokens": [added(0, "<bos>"), added(1, "<eos>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "model": {"type": "BPE", "vocab": {"<bos>": 0, "<eos>": 1, "a": 2}, "merges": []},
    });
    fs::write(folder.path().join(TOKENIZER), file.to_string()).unwrap();
    fs::write(folder.path().join(NAME), config.to_string()).unwrap();
    let model = json!({ "model_type": model_type });
    fs::write(folder.path().join(ConfigFile::NAME), model.to_string()).unwrap();
    Ok(serde_json::from_slice(&read_tokenizer(&ModelFolder::new(folder.path()))?).unwrap())
}

#[test]
fn flags_of_gemma_replace_the_tokens_around_a_text() {
    let single = |flags: Value| {
        let mut config = json!({"tokenizer_class": "GemmaTokenizerFast"});
        config
            .as_object_mut()
            .unwrap()
            .extend(flags.as_object().cloned().unwrap());
        let tokenizer = read(&config).unwrap();
        let parts = tokenizer["post_processor"]["single"]
            .as_array()
            .unwrap()
            .iter();
        let name = |part: &Value| part.as_object().unwrap().values().next().unwrap()["id"].clone();
        parts.map(name).collect::<Vec<_>>()
    };
    assert_eq!(single(json!({})), ["<bos>", "A"]);
    assert_eq!(
        single(json!({"add_eos_token": true})),
        ["<bos>", "A", "<eos>"]
    );
    assert_eq!(single(json!({"add_bos_token": false})), ["A"]);
    let tokenizer =
        read(&json!({"tokenizer_class": "GemmaTokenizer", "add_eos_token": true})).unwrap();
    let pair = tokenizer["post_processor"]["pair"].as_array().unwrap();
    assert_eq!(pair.len(), 6);
    assert_eq!(pair[4], json!({"Sequence": {"id": "B", "type_id": 1}}));
    for other in [
        json!({"tokenizer_class": "PreTrainedTokenizerFast", "add_eos_token": true}),
        // In files from version 5, as here, the flags say nothing.
        json!({"tokenizer_class": "GemmaTokenizer", "add_eos_token": true, "backend": "tokenizers"}),
    ] {
        assert_eq!(read(&other).unwrap()["post_processor"], Value::Null);
    }
}

#[test]
fn tokens_around_a_text_are_those_of_the_vocabulary_and_of_the_map() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: Value| {
        fs::write(folder.path().join(name), value.to_string()).unwrap();
    };
    write("config.json", json!({"model_type": "gemma"}));
    write(
        NAME,
        json!({"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>"}),
    );
    write(SPECIAL_FILE, json!({"bos_token": {"content": "<b>"}}));
    write(
        TOKENIZER,
        json!({
            "version": "1.0", "added_tokens": [added("<bos>", 1), added("<b>", 0)], "post_processor": null,
            "model": {"type": "BPE", "vocab": {"<bos>": 0, "<b>": 1}, "merges": []},
        }),
    );
    let read = read_tokenizer(&ModelFolder::new(folder.path())).unwrap();
    let expected = json!({"<b>": {"id": "<b>", "ids": [1], "tokens": ["<b>"]}});
    assert_eq!(parse(&read)["post_processor"]["special_tokens"], expected);
}

#[test]
fn newer_models_may_name_the_class_that_makes_their_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &Value| {
        fs::write(folder.path().join(name), value.to_string()).unwrap();
    };
    write(
        "config.json",
        &json!({"model_type": "embedding_gemma2_text"}),
    );
    write(
        NAME,
        &json!({"tokenizer_class": "GemmaTokenizerFast", "add_eos_token": false}),
    );
    let mut tokenizer = json!({
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false
        },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": {}, "merges": []
        }
    });
    let class_of = |tokenizer: &Value| {
        write(TOKENIZER, tokenizer);
        class(&ModelFolder::new(folder.path())).unwrap()
    };
    assert_eq!(class_of(&tokenizer), "TokenizersBackend");
    tokenizer["model"]["fuse_unk"] = json!(false);
    assert_eq!(class_of(&tokenizer), "GemmaTokenizerFast");
    tokenizer["model"]["fuse_unk"] = json!(true);
    write(
        NAME,
        &json!({"tokenizer_class": "GemmaTokenizer", "unk_token": "[UNK]"}),
    );
    assert_eq!(class_of(&tokenizer), "GemmaTokenizer");
    tokenizer["model"]["unk_token"] = json!("[UNK]");
    assert_eq!(class_of(&tokenizer), "TokenizersBackend");

    let settings = |legacy: bool| json!({"tokenizer_class": "LlamaTokenizer", "legacy": legacy, "add_prefix_space": null});
    write(NAME, &settings(false));
    tokenizer["model"]["unk_token"] = Value::Null;
    tokenizer["normalizer"] = Value::Null;
    tokenizer["pre_tokenizer"] = json!({
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false
    });
    assert_eq!(class_of(&tokenizer), "TokenizersBackend");
    write(NAME, &settings(true));
    assert_eq!(class_of(&tokenizer), "LlamaTokenizer");
    // Version 5 has another class for these, which reads the file.
    write("config.json", &json!({"model_type": "ministral3"}));
    assert_eq!(class_of(&tokenizer), "TokenizersBackend");
}

#[test]
fn the_id_of_unknown_pieces_is_that_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-deberta-nli");
    for name in [TOKENIZER, ConfigFile::NAME] {
        fs::copy(source.join(name), folder.path().join(name)).unwrap();
    }
    let read = |class: &str, id: u32| {
        let settings = json!({"tokenizer_class": class, "unk_id": id});
        fs::write(folder.path().join(NAME), settings.to_string()).unwrap();
        read_tokenizer(&ModelFolder::new(folder.path()))
    };
    read("DebertaV2Tokenizer", 3).unwrap();
    read("PreTrainedTokenizer", 0).unwrap();
    insta::assert_snapshot!(read("DebertaV2Tokenizer", 0).unwrap_err(), @"expected 3, the `unk_id` of `tokenizer.json`, as `unk_id` in `tokenizer_config.json`, but found 0");
}

#[test]
fn existing_special_tokens_are_found_before_normalization_as_before() {
    let added = json!({
        "0": {"content": "<bos>", "lstrip": true, "normalized": true, "special": true},
        "3": {"content": "<new>", "normalized": true, "special": true},
    });
    let tokenizer = read(&json!({"added_tokens_decoder": added})).unwrap();
    let tokens = tokenizer["added_tokens"].as_array().unwrap();
    assert_eq!(
        (&tokens[0]["lstrip"], &tokens[0]["normalized"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(
        (&tokens[2]["content"], &tokens[2]["normalized"]),
        (&json!("<new>"), &json!(true))
    );
}

#[test]
fn named_tokens_are_special_whatever_their_entry_says() {
    let added = json!({"0": {"content": "<bos>"}, "1": {"content": "<eos>", "special": false}});
    let tokenizer = read(&json!({"added_tokens_decoder": added, "bos_token": "<bos>"})).unwrap();
    let tokens = tokenizer["added_tokens"].as_array().unwrap();
    assert_eq!(
        (&tokens[0]["special"], &tokens[1]["special"]),
        (&json!(true), &json!(false))
    );
}

#[test]
fn a_class_needs_its_special_tokens() {
    let refusal = read(&json!({"tokenizer_class": "ElectraTokenizerFast"})).unwrap_err();
    insta::assert_snapshot!(refusal, @"expected the token `[CLS]` of `cls_token` in `tokenizer.json`, but found none, so that the model has no vector for it");
    let named =
        ["cls", "sep", "unk", "pad", "mask"].map(|name| (format!("{name}_token"), json!("<bos>")));
    let mut settings: Map<String, Value> = named.into_iter().collect();
    settings.insert("tokenizer_class".to_owned(), json!("ElectraTokenizerFast"));
    read(&settings.into()).unwrap();
}

#[test]
fn special_tokens_are_never_split_and_have_an_id() {
    let tokenizer = read(&json!({"sep_token": "a", "cls_token": {"content": "<bos>"}})).unwrap();
    let added = tokenizer["added_tokens"].as_array().unwrap();
    assert_eq!(
        (added.len(), &added[2]["content"], &added[2]["id"]),
        (3, &json!("a"), &json!(2))
    );
    let named =
        |token: &str| read(&json!({"model_specific_special_tokens": {"image_token": token}}));
    assert_eq!(named("a").unwrap()["added_tokens"][2]["content"], "a");
    let refusals = [
        read(&json!({"additional_special_tokens": ["<new>"]})),
        named("<new>"),
    ];
    insta::assert_snapshot!(refusals.map(|refusal| refusal.unwrap_err().to_string()).join("\n"), @r"
    expected the token `<new>` of `additional_special_tokens` in `tokenizer.json`, but found none, so that the model has no vector for it
    expected the token `<new>` of `model_specific_special_tokens` in `tokenizer.json`, but found none, so that the model has no vector for it
    ");
}

#[test]
fn the_space_before_a_text_is_a_setting_of_all_classes_before_version_5() {
    let space = |config: Value| read(&config).unwrap()["pre_tokenizer"]["add_prefix_space"].clone();
    assert_eq!(
        space(json!({"tokenizer_class": "PreTrainedTokenizerFast"})),
        false
    );
    assert_eq!(space(json!({"tokenizer_class": "Qwen2Tokenizer"})), false);
    assert_eq!(
        space(json!({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": true})),
        true
    );
    assert_eq!(
        space(json!({"tokenizer_class": "TokenizersBackend", "backend": "tokenizers"})),
        true
    );
    for (model_type, class) in [
        ("ultrabert", "TokenizersBackend"),
        ("ministral3", "Qwen2Tokenizer"),
    ] {
        let newer = read_of_model(model_type, &json!({ "tokenizer_class": class }));
        assert_eq!(newer.unwrap()["pre_tokenizer"]["add_prefix_space"], true);
    }
}

#[test]
fn the_tokenizer_of_a_newer_model_is_that_of_its_class() {
    let (folder, source) = (
        tempfile::tempdir().unwrap(),
        fixtures().join("models/tiny-splade-gte"),
    );
    for name in [NAME, ConfigFile::NAME] {
        fs::copy(source.join(name), folder.path().join(name)).unwrap();
    }
    let mut tokenizer = parse(&fs::read(source.join(TOKENIZER)).unwrap());
    let read = |tokenizer: &Value| {
        fs::write(folder.path().join(TOKENIZER), tokenizer.to_string()).unwrap();
        let read = read_newer_tokenizer(&ModelFolder::new(folder.path()), false);
        read.map(|json| parse(&json))
    };
    let made = read(&tokenizer).unwrap();
    for part in ["normalizer", "pre_tokenizer", "post_processor", "model"] {
        assert_eq!(made[part], tokenizer[part], "{part}");
    }
    tokenizer["pre_tokenizer"] = json!({"type": "Digits", "individual_digits": false});
    tokenizer["normalizer"]["clean_text"] = json!(false);
    assert_eq!(read(&tokenizer).unwrap(), made);
    tokenizer["model"]["type"] = json!("BPE");
    insta::assert_snapshot!(read(&tokenizer).unwrap_err(), @"expected a `WordPiece` vocabulary for `BertTokenizer` in `tokenizer.json`, but found `BPE`");
}

#[test]
fn a_newer_model_has_the_listed_tokens_and_no_others() {
    let (folder, source) = (
        tempfile::tempdir().unwrap(),
        fixtures().join("models/tiny-splade-gte"),
    );
    for name in [TOKENIZER, ConfigFile::NAME] {
        fs::copy(source.join(name), folder.path().join(name)).unwrap();
    }
    let added = |listed: Value| {
        let settings = json!({"tokenizer_class": "BertTokenizer", "added_tokens_decoder": listed});
        fs::write(folder.path().join(NAME), settings.to_string()).unwrap();
        let read = read_newer_tokenizer(&ModelFolder::new(folder.path()), false).unwrap();
        let added = parse(&read)["added_tokens"].as_array().cloned().unwrap();
        let shown = added.iter().map(|token| {
            format!(
                "{} {} {}",
                token["id"], token["content"], token["normalized"]
            )
        });
        shown.collect::<Vec<_>>()
    };
    let piece = json!({"content": "the", "special": false, "normalized": true});
    let mask = json!({"content": "[MASK]", "special": true, "normalized": true});
    let found = added(json!({"192": piece, "4": mask}));
    let others = [
        r#"2 "[CLS]" false"#,
        r#"3 "[SEP]" false"#,
        r#"1 "[UNK]" false"#,
        r#"0 "[PAD]" false"#,
    ];
    let listed = [r#"4 "[MASK]" true"#, r#"192 "the" true"#];
    assert_eq!(found, [&listed[..], &others].concat());
    assert_eq!(added(Value::Null)[..3], [others[3], others[2], others[0]]);
}

#[test]
fn the_pieces_of_a_newer_model_are_read_as_its_class_does() {
    let (folder, source) = (
        tempfile::tempdir().unwrap(),
        fixtures().join("models/tiny-xlm-roberta"),
    );
    fs::copy(source.join(NAME), folder.path().join(NAME)).unwrap();
    let mut tokenizer = parse(&fs::read(source.join(TOKENIZER)).unwrap());
    let read = |tokenizer: &Value| {
        fs::write(folder.path().join(TOKENIZER), tokenizer.to_string()).unwrap();
        let read = read_newer_tokenizer(&ModelFolder::new(folder.path()), true);
        read.map(|json| parse(&json))
    };
    let made = read(&tokenizer).unwrap();
    assert_eq!(
        made["normalizer"],
        tokenizer["normalizer"]["normalizers"][0]
    );
    assert_eq!(
        made["pre_tokenizer"],
        json!({
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, tokenizer["pre_tokenizer"]],
        })
    );
    assert_eq!(made["post_processor"], tokenizer["post_processor"]);
    tokenizer["model"]["unk_id"] = json!(2);
    tokenizer["post_processor"] = Value::Null;
    tokenizer["added_tokens"].as_array_mut().unwrap().swap(0, 1);
    assert_eq!(read(&tokenizer).unwrap(), made);
    tokenizer["model"]["vocab"][2][0] = json!("x");
    insta::assert_snapshot!(read(&tokenizer).unwrap_err(), @"expected `</s>` (`eos_token`) in `tokenizer.json`, but found none");
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

fn parse(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap()
}

#[test]
fn the_vocabulary_of_bert_makes_the_tokenizer_that_transformers_saves() {
    let (folder, source) = (
        tempfile::tempdir().unwrap(),
        fixtures().join("models/tiny-bert"),
    );
    for name in ["vocab.txt", "config.json", "tokenizer_config.json"] {
        fs::copy(source.join(name), folder.path().join(name)).unwrap();
    }
    let mut saved = parse(&fs::read(source.join(TOKENIZER)).unwrap());
    (saved["truncation"], saved["padding"]) = (Value::Null, Value::Null);
    assert_eq!(
        parse(&read_tokenizer(&ModelFolder::new(folder.path())).unwrap()),
        saved
    );
    // The settings replace the defaults.
    fs::write(
        folder.path().join("tokenizer_config.json"),
        r#"{"do_lower_case": false}"#,
    )
    .unwrap();
    let cased = parse(&read_tokenizer(&ModelFolder::new(folder.path())).unwrap());
    assert_eq!(cased["normalizer"]["lowercase"], false);
    fs::write(folder.path().join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n").unwrap();
    let refusal = read_tokenizer(&ModelFolder::new(folder.path()))
        .unwrap_err()
        .to_string();
    assert_eq!(
        refusal,
        "expected `[SEP]` (`sep_token`) in `vocab.txt`, but found none"
    );
}

#[test]
fn the_pieces_of_xlm_roberta_make_the_tokenizer_that_transformers_converts() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(
        fixtures()
            .join("models/tiny-mbart")
            .join("sentencepiece.bpe.model"),
        folder.path().join("sentencepiece.bpe.model"),
    )
    .unwrap();
    fs::write(
        folder.path().join("config.json"),
        r#"{"model_type": "xlm-roberta"}"#,
    )
    .unwrap();
    let mut built = parse(&read_tokenizer(&ModelFolder::new(folder.path())).unwrap());
    // The golden file omits the character map, which equals the source file's.
    assert!(
        built["normalizer"]["normalizers"][0]["precompiled_charsmap"]
            .take()
            .is_string()
    );
    let golden = parse(&fs::read(fixtures().join("goldens/xlm_roberta_pieces.json")).unwrap());
    // Scores are 32-bit floats.
    let scores = |tokenizer: &mut Value| {
        let pieces = tokenizer["model"]["vocab"].take();
        let pieces: Vec<(String, f32)> = serde_json::from_value(pieces).unwrap();
        pieces
    };
    let mut golden = golden;
    assert_eq!(scores(&mut built), scores(&mut golden));
    assert_eq!(built, golden);
}
