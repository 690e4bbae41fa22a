//! Model file readers by name, for fuzzing: see `crate`. Not part of the API.

use std::{collections::BTreeMap, fs, path::Path};

use kivu::{pipeline::Task, repository::manifest::Precision, tokenizer::Tokenizer};
use kivu_compiler::{
    Recipe, bergamot, encoder, export, fast_text,
    files::{config::ConfigFile, model_folder::ModelFolder, pickle, weights::Weights},
    library::hub as hugging_face_hub,
    onnx,
    plan::Plan,
    seq2seq::{fairseq, generation, tokenizer_files},
    tokenizers::byte_pairs,
};

/// Calls `read` with a folder that contains the given files. The folder is reused.
fn with_files(files: &[(&str, &[u8])], read: impl FnOnce(&Path)) {
    thread_local! {
        static FOLDER: Option<tempfile::TempDir> = tempfile::tempdir().ok();
    }
    FOLDER.with(|folder| {
        let Some(folder) = folder.as_ref().map(tempfile::TempDir::path) else {
            return;
        };
        if files
            .iter()
            .all(|(name, bytes)| fs::write(folder.join(name), bytes).is_ok())
        {
            read(folder);
        }
        for (name, _) in files {
            // A remaining file is overwritten.
            let _ = fs::remove_file(folder.join(name));
        }
    });
}

/// Splits an input into parts: each but the last is prefixed with its length in two bytes.
fn parts<const COUNT: usize>(mut bytes: &[u8]) -> Option<[&[u8]; COUNT]> {
    let mut parts = [&b""[..]; COUNT];
    let (last, others) = parts.split_last_mut()?;
    for part in others {
        let (length, rest) = bytes.split_first_chunk()?;
        (*part, bytes) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    }
    *last = bytes;
    Some(parts)
}

pub fn recipe(bytes: &[u8]) {
    // An error is a valid outcome, here and below.
    with_files(&[("recipe.toml", bytes)], |folder| {
        drop(Recipe::open(&folder.join("recipe.toml")))
    });
}

/// Weights or shard index, and model configuration.
pub fn weights(bytes: &[u8]) {
    let Some([config, weights]) = parts(bytes) else {
        return;
    };
    with_files(&[("model.safetensors", weights)], |folder| {
        drop(Weights::open(folder))
    });
    with_files(&[("model.safetensors.index.json", weights)], |folder| {
        drop(Weights::open(folder))
    });
    let files = [
        ("config.json", config),
        ("model.safetensors", weights),
        ("tokenizer.json", b"{}"),
    ];
    with_files(&files, |folder| {
        let plan = Plan {
            folder: ModelFolder::new(folder),
            ..Plan::default()
        };
        if let Ok(source) = encoder::open(&plan) {
            drop((source.graphs)(Precision::Fp32, None));
        }
    });
}

/// A repository's file list.
pub fn hub(bytes: &[u8]) {
    let Ok(name) = "org/name".parse() else { return };
    drop(hugging_face_hub::client::Listing::parse(bytes, &name));
}

/// A PyTorch checkpoint, and a pickle without an archive, whose checksums would hide it from the fuzzer.
pub fn checkpoint(bytes: &[u8]) {
    drop(pickle::read(bytes));
    drop(pickle::tensors(bytes));
}

/// A fastText model, and its features in a text.
pub fn fast_text_model(bytes: &[u8]) {
    with_files(&[("model.ftz", bytes)], |folder| {
        let Ok(source) = fast_text::open(&Plan {
            folder: ModelFolder::new(folder),
            ..Plan::default()
        }) else {
            return;
        };
        drop((source.graphs)(Precision::Fp32, None));
        if let Ok(tokenizer) = Tokenizer::from_json(&source.tokenizer) {
            drop(tokenizer.ids("The Zug 電車\n7"));
        }
    });
}

/// An ONNX graph: in memory, as an encoder and a decoder, and as an export.
pub fn graph(bytes: &[u8]) {
    drop(kivu::onnx::ExternalWeights::of(&[bytes.to_vec()], |_| {
        Some(bytes.len() as u64)
    }));
    with_files(
        &[
            ("encoder_model.onnx", bytes),
            ("decoder_model_merged.onnx", bytes),
        ],
        |folder| {
            let Ok(mut model) = onnx::read(&folder.join("encoder_model.onnx")) else {
                return;
            };
            drop(export::text_encoder::output(
                &model,
                &ModelFolder::new(folder),
            ));
            if !export::quantize::is_quantized(&model) {
                export::quantize::quantize(&mut model);
            }
            drop(export::read(folder));
        },
    );
}

/// Tokenizer files for a translation model: settings, ids and the SentencePiece model.
pub fn pieces_of_translation(bytes: &[u8]) {
    let Some([settings, ids, pieces]) = parts(bytes) else {
        return;
    };
    let read = |tokenizers: kivu::error::Result<tokenizer_files::Tokenizers>| {
        if let Ok(tokenizers) = tokenizers {
            drop(Tokenizer::compile(&tokenizers.source.json));
        }
    };
    let files = [
        ("tokenizer_config.json", settings),
        ("vocab.json", ids),
        ("source.spm", pieces),
    ];
    with_files(&files, |folder| {
        read(tokenizer_files::marian(&ModelFolder::new(folder), [4, 4]))
    });
    let files = [
        ("tokenizer_config.json", settings),
        ("sentencepiece.bpe.model", pieces),
    ];
    with_files(&files, |folder| {
        read(tokenizer_files::many_to_many(&ModelFolder::new(folder), 4));
        read(tokenizer_files::mbart(
            &ModelFolder::new(folder),
            None,
            4,
            Task::Summarization,
        ));
    });
    let files = [
        ("tokenizer_config.json", settings),
        ("vocab.json", ids),
        ("merges.txt", pieces),
    ];
    with_files(&files, |folder| {
        drop(byte_pairs::tokenizer(&ModelFolder::new(folder)).map(|json| Tokenizer::compile(&json)))
    });
}

/// A translation model's configuration.
pub fn translation_config(bytes: &[u8]) {
    let pieces = include_bytes!("../../../tests/fixtures/models/tiny-marian/source.spm");
    let ids = include_bytes!("../../../tests/fixtures/models/tiny-marian/vocab.json");
    let files = [
        ("config.json", bytes),
        ("vocab.json", ids),
        ("source.spm", pieces),
    ];
    with_files(&files, translation_settings);
}

/// Reads a translation model without its weights.
fn translation_settings(folder: &Path) {
    let folder = &ModelFolder::new(folder);
    let Ok(config) = ConfigFile::open(folder) else {
        return;
    };
    let weights = Weights::of_tensors(BTreeMap::new(), String::new());
    drop(fairseq::model(&config, &weights, [4, 4]));
    drop(generation::generation(folder, &config));
    drop(tokenizer_files::marian(folder, [4, 4]));
}

/// A Bergamot student: shortlist and weights.
pub fn student(bytes: &[u8]) {
    let Some([lexicon, model]) = parts(bytes) else {
        return;
    };
    // Invalid bytes are errors.
    drop(bergamot::lexicon::shortlist(lexicon, lexicon.len() / 24));
    drop(bergamot::tokenizer(model));
    drop(
        bergamot::file::File::parse(model)
            .and_then(|file| bergamot::model::model(file, String::new())),
    );
}
