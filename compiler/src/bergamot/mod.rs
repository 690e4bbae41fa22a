//! Bergamot students: small translation models for browsers.

pub mod file;
pub mod lexicon;
pub mod model;

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use self::model::MAX_POSITIONS;
use super::{
    files::{config::ConfigFile, io as files},
    plan::{
        Plan,
        opened_model::{OpenedModel, SHORTLIST, unread_decoder},
    },
    seq2seq::graphs,
    tokenizers::parts::to_bytes,
};
use kivu::{
    Error, Result,
    backend::Engine,
    hexadecimal::hex,
    pipeline::{
        Task,
        generation::{GenerationOptions, GenerationSettings},
        seq2seq::{Languages, Seq2SeqSettings},
    },
    repository::TaskSettings,
    tokenizer::{LONGEST_KEYS, UNMATCHED},
};

/// Maximum number of tokens per text: the models were trained on sentences.
const MAX_TOKENS: usize = 512;
/// Maximum number of generated tokens per source token, from the models' own options.
const LENGTH_FACTOR: f32 = 2.5;
/// End-of-text and unknown tokens, by id.
const SPECIAL: [&str; 2] = ["</s>", "<unk>"];

/// Whether `folder` looks like a Bergamot student.
pub fn is_in(folder: &Path) -> bool {
    !folder.join(ConfigFile::NAME).is_file() && matches!(find(folder, "model."), Ok(Some(_)))
}

/// Reads the student in the plan's folder.
pub fn open(plan: &Plan) -> Result<OpenedModel<'static>> {
    let folder = &plan.folder;
    let in_folder =
        |error| Error::model_because(format!("cannot build from `{}`", folder.display()), error);
    let path = require(folder, "model.")?;
    let bytes = files::read(&path)?;
    let sha256 = hex(&Sha256::digest(&bytes));
    let file = file::File::parse(&bytes).map_err(in_folder)?;
    let (model, weights) = model::model(file, sha256.clone()).map_err(in_folder)?;
    let lexicon = files::read(&require(folder, "lex.")?)?;
    let shortlist = lexicon::shortlist(&lexicon, model.tables.output.rows).map_err(in_folder)?;
    let tokenizer = tokenizer(&files::read_tokenizer(folder)?).map_err(in_folder)?;
    let settings = Seq2SeqSettings {
        max_tokens: MAX_TOKENS,
        max_positions: MAX_POSITIONS,
        prefix: String::new(),
        source_end_token_id: None,
        unknown_tokens: None,
        target_tokenizer: None,
        shortlist: Some(SHORTLIST.to_owned()),
        decoder: unread_decoder(),
        languages: plan.languages(languages(&path))?,
        generation: GenerationSettings {
            decoder_start_token_id: -1,
            eos_token_ids: vec![0],
            pad_token_id: 0,
            length_factor: Some(LENGTH_FACTOR),
            defaults: GenerationOptions {
                num_beams: Some(1),
                ..GenerationOptions::default()
            },
        },
    };
    Ok(OpenedModel {
        architecture: model.architecture.clone(),
        sha256,
        settings: TaskSettings::Seq2Seq(Box::new(settings)),
        generates: &[Task::Translation],
        tokenizer,
        files: vec![(SHORTLIST, shortlist.to_bytes())],
        unused_heads: Vec::new(),
        keeps_attention: false,
        is_export: false,
        is_quantized: false,
        engine: Engine::Onnx,
        fp32_engine: Engine::Onnx,
        graphs: graphs(model, weights),
    })
}

/// Parses the languages in a model's file name: `model.enpt.intgemm.alphas.bin`.
fn languages(model: &Path) -> Option<Languages> {
    let pair = model.file_name()?.to_str()?.split('.').nth(1)?;
    let is_pair = pair.len() == 4 && pair.bytes().all(|letter| letter.is_ascii_lowercase());
    let (source, target) = is_pair.then(|| pair.split_at(2))?;
    Some(Languages::Pair {
        source: source.into(),
        target: target.into(),
    })
}

/// Gives the tokenizer special tokens that no text can contain, so that `</s>` in a text does not end it.
pub fn tokenizer(json: &[u8]) -> Result<Vec<u8>> {
    let mut tokenizer: serde_json::Value = files::parse_tokenizer(json)?;
    for (id, expected) in SPECIAL.iter().enumerate() {
        let piece = tokenizer.pointer_mut(&format!("/model/vocab/{id}/0"));
        match piece {
            Some(piece) if piece == expected => *piece = format!("{UNMATCHED}{expected}").into(),
            other => {
                return Err(Error::model(format!(
                    "expected `{expected}` as piece {id} of the tokenizer, but found {}",
                    other.map_or("none".to_owned(), |piece| piece.to_string())
                )));
            }
        }
    }
    // Marian has SentencePiece itself, not a conversion.
    if let Some(kind) = tokenizer.pointer_mut("/normalizer/normalizers/0/type")
        && *kind == "Precompiled"
    {
        *kind = LONGEST_KEYS.into();
    }
    to_bytes(&tokenizer)
}

fn require(folder: &Path, prefix: &str) -> Result<PathBuf> {
    find(folder, prefix)?.ok_or_else(|| {
        Error::model(format!(
            "expected a Bergamot student in `{}` (`model.….bin`, `lex.….bin`, `tokenizer.json`), but found no \
             `{prefix}….bin`",
            folder.display()
        ))
    })
}

/// Finds the first file with a name that begins with `prefix` and ends with `.bin`.
fn find(folder: &Path, prefix: &str) -> Result<Option<PathBuf>> {
    let is_found = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(prefix) && name.ends_with(".bin"))
    };
    Ok(files::list(folder)?
        .into_iter()
        .map(|(path, _)| path)
        .find(is_found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_read_from_the_file_name() {
        let pair = |name: &str| languages(Path::new(name));
        let en_pt = Languages::Pair {
            source: "en".into(),
            target: "pt".into(),
        };
        assert_eq!(pair("/models/model.enpt.intgemm.alphas.bin"), Some(en_pt));
        for name in ["model.bin", "model.english.bin", "model.EN12.bin"] {
            assert_eq!(pair(name), None, "{name}");
        }
    }

    #[test]
    fn texts_are_normalized_as_by_sentencepiece() {
        let json = r#"{"model": {"vocab": [["</s>", 0.0], ["<unk>", 0.0]]}, "normalizer": {"normalizers": [{"type": "Precompiled"}]}}"#;
        let made = String::from_utf8(tokenizer(json.as_bytes()).unwrap()).unwrap();
        assert!(made.contains(r#"{"type":"SentencePiece"}"#), "{made}");
    }

    #[test]
    fn special_tokens_cannot_occur_in_texts() {
        let json = r#"{"model": {"type": "Unigram", "vocab": [["</s>", 0.0], ["<unk>", 0.0], [",", -3.113255262374878]]}}"#;
        let guarded = String::from_utf8(tokenizer(json.as_bytes()).unwrap()).unwrap();
        insta::assert_snapshot!(guarded, @r#"{"model":{"type":"Unigram","vocab":[["\u0001</s>",0.0],["\u0001<unk>",0.0],[",",-3.113255262374878]]}}"#);
        let refusal = |json: &str| tokenizer(json.as_bytes()).unwrap_err().to_string();
        insta::assert_snapshot!(refusal("{}"), @"expected `</s>` as piece 0 of the tokenizer, but found none");
        insta::assert_snapshot!(refusal(r#"{"model": {"vocab": [["a", 0.0]]}}"#), @r#"expected `</s>` as piece 0 of the tokenizer, but found "a""#);
    }
}
