//! Bergamot students: small translation models, as browsers load them.

mod file;
mod lexicon;
mod model;

use std::{
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{
    folder::read_tokenizer,
    translation::{Opened, OpenedSettings, Origin},
};
use crate::{
    error::{Error, Result},
    pipeline::{
        generation::{GenerationOptions, GenerationSettings},
        translation::Languages,
    },
    repository::bundle::hex,
};

/// The most tokens of a text: the models were trained on sentences.
const MAX_TOKENS: usize = 512;
/// How many tokens are written at most for each that is read, as the models' own options have it.
const LENGTH_FACTOR: f32 = 2.5;
/// The token that ends a text, and the one for what is in no vocabulary.
const SPECIAL: [&str; 2] = ["</s>", "<unk>"];
/// What no text has after its normalisation.
const NEVER: char = '\u{1}';

/// Whether `folder` looks like that of a student.
pub(super) fn is_in(folder: &Path) -> bool {
    !folder.join("config.json").is_file() && matches!(find(folder, "model."), Ok(Some(_)))
}

/// Reads the student in `folder`.
pub(super) fn open(folder: &Path) -> Result<Opened> {
    let in_folder = |error| Error::model_because(format!("cannot build from `{}`", folder.display()), error);
    let path = require(folder, "model.")?;
    let bytes = read(&path)?;
    let sha256 = hex(&Sha256::digest(&bytes));
    let (model, weights) =
        file::File::parse(&bytes).and_then(|file| model::model(file, sha256)).map_err(in_folder)?;
    let lexicon = read(&require(folder, "lex.")?)?;
    let shortlist = lexicon::shortlist(&lexicon, model.tables.output.rows).map_err(in_folder)?;
    let tokenizer = tokenizer(&read_tokenizer(folder)?).map_err(in_folder)?;
    Ok(Opened {
        settings: OpenedSettings {
            max_tokens: MAX_TOKENS,
            languages: languages(&path),
            generation: GenerationSettings {
                decoder_start_token_id: -1,
                eos_token_ids: vec![0],
                pad_token_id: 0,
                length_factor: Some(LENGTH_FACTOR),
                defaults: GenerationOptions { num_beams: Some(1), ..GenerationOptions::default() },
            },
            unknown_tokens: None,
        },
        origin: Origin::Weights { model: Box::new(model), weights },
        tokenizer,
        target_tokenizer: None,
        shortlist: Some(shortlist.to_bytes()),
    })
}

/// Reads a shortlist and a model of any bytes.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn read_any(lexicon: &[u8], model: &[u8]) {
    // What cannot be read is told by an error.
    let _ = lexicon::shortlist(lexicon, lexicon.len() / 24);
    let _ = tokenizer(model);
    let _ = file::File::parse(model).and_then(|file| model::model(file, String::new()));
}

/// The pair of languages that such files are named after: `model.enpt.intgemm.alphas.bin`.
fn languages(model: &Path) -> Option<Languages> {
    let pair = model.file_name()?.to_str()?.split('.').nth(1)?;
    let is_pair = pair.len() == 4 && pair.bytes().all(|letter| letter.is_ascii_lowercase());
    let (source, target) = is_pair.then(|| pair.split_at(2))?;
    Some(Languages::Pair { source: source.into(), target: target.into() })
}

/// The tokenizer with its special tokens spelt so that no text can spell them: a text that says `</s>` is not at
/// its end.
fn tokenizer(json: &[u8]) -> Result<Vec<u8>> {
    let unreadable = |error| Error::model_because("cannot read the tokenizer", error);
    let mut tokenizer: serde_json::Value = serde_json::from_slice(json).map_err(unreadable)?;
    for (id, expected) in SPECIAL.iter().enumerate() {
        let piece = tokenizer.pointer_mut(&format!("/model/vocab/{id}/0"));
        match piece {
            Some(piece) if piece == expected => *piece = format!("{NEVER}{expected}").into(),
            other => {
                return Err(Error::model(format!(
                    "expected `{expected}` as piece {id} of the tokenizer, but found {}",
                    other.map_or("none".to_owned(), |piece| piece.to_string())
                )));
            }
        }
    }
    serde_json::to_vec(&tokenizer).map_err(unreadable)
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

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io(format!("cannot read `{}`", path.display())))
}

/// The file whose name begins with `prefix` and ends with `.bin`; the first one, should there be several.
fn find(folder: &Path, prefix: &str) -> Result<Option<PathBuf>> {
    let unreadable = || Error::io(format!("cannot read `{}`", folder.display()));
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable())? {
        let entry = entry.map_err(unreadable())?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(".bin")) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found.into_iter().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pair_of_languages_is_read_from_the_name() {
        let pair = |name: &str| languages(Path::new(name));
        let en_pt = Languages::Pair { source: "en".into(), target: "pt".into() };
        assert_eq!(pair("/models/model.enpt.intgemm.alphas.bin"), Some(en_pt));
        for name in ["model.bin", "model.english.bin", "model.EN12.bin"] {
            assert_eq!(pair(name), None, "{name}");
        }
    }

    #[test]
    fn special_tokens_cannot_be_spelt() {
        let json = r#"{"model": {"type": "Unigram", "vocab": [["</s>", 0.0], ["<unk>", 0.0], [",", -3.113255262374878]]}}"#;
        let guarded = String::from_utf8(tokenizer(json.as_bytes()).unwrap()).unwrap();
        insta::assert_snapshot!(guarded, @r#"{"model":{"type":"Unigram","vocab":[["\u0001</s>",0.0],["\u0001<unk>",0.0],[",",-3.113255262374878]]}}"#);
        let refusal = |json: &str| tokenizer(json.as_bytes()).unwrap_err().to_string();
        insta::assert_snapshot!(refusal("{}"), @"expected `</s>` as piece 0 of the tokenizer, but found none");
        insta::assert_snapshot!(refusal(r#"{"model": {"vocab": [["a", 0.0]]}}"#), @r#"expected `</s>` as piece 0 of the tokenizer, but found "a""#);
    }
}
