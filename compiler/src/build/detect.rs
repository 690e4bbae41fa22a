//! Detects a model's file format, and opens it with the format's reader.

use crate::{
    bergamot, encoder, export, fast_text,
    files::{
        config::ConfigFile,
        model_folder::ModelFolder,
        module_list::{MODULES, modules},
        other_weights,
        weights::{self, Weights},
    },
    keys::{self, Kind},
    model_types::Family,
    plan::{Build, Plan, opened_model::OpenedModel},
    sentence_transformers::static_embedding,
    seq2seq,
};
use kivu::{
    Error, Result,
    error::{Message, quoted},
    repository::bundle::{MANIFEST, TOKENIZER},
};

/// Checks the keys in all model files; returns warnings about keys that the plan allows.
pub fn check_keys(plan: &Plan) -> Result<Vec<String>> {
    keys::check(plan, kind(plan)?)
}

/// Opens the model in the plan's folder.
pub fn open(build: Build<'_>) -> Result<OpenedModel<'_>> {
    let kind = kind(build.plan)?;
    if build.plan.adapter.is_some() && kind != Kind::Encoder {
        return Err(Error::model(format!(
            "the adapter's base in `{}` is not an encoder in safetensors or a PyTorch checkpoint",
            build.plan.folder.display()
        ))
        .with_hint("merge the adapter with `merge_and_unload` and `save_pretrained`"));
    }
    match kind {
        Kind::Bergamot => bergamot::open(build.plan),
        Kind::FastText => fast_text::open(build.plan),
        Kind::StaticEmbedding => static_embedding::open(build.plan),
        Kind::Gliner => encoder::open_gliner(build.plan),
        Kind::Gliclass => encoder::open_gliclass(build.plan),
        Kind::Gliner2 => encoder::open_gliner2(build.plan),
        Kind::Seq2Seq => seq2seq::open(build),
        Kind::Encoder => encoder::open(build.plan),
        Kind::Export => export::open(build),
    }
}

/// Detects the model format in the plan's folder.
fn kind(plan: &Plan) -> Result<Kind> {
    if plan.file.is_some() {
        return Ok(Kind::FastText);
    }
    let (folder, transformer) = (&plan.folder, &plan.transformer()?);
    // A file's name may be a Bergamot student's, but not its first bytes.
    if !transformer.join(ConfigFile::NAME).is_file() && fast_text::is_in(folder) {
        Ok(Kind::FastText)
    } else if bergamot::is_in(folder) {
        Ok(Kind::Bergamot)
    } else if static_embedding::is_in(folder)? {
        Ok(Kind::StaticEmbedding)
    } else if encoder::is_gliner(folder) {
        Ok(Kind::Gliner)
    } else if encoder::is_gliclass(folder) {
        Ok(Kind::Gliclass)
    } else if encoder::is_gliner2(folder) {
        Ok(Kind::Gliner2)
    } else if !transformer.join(ConfigFile::NAME).is_file() {
        check_first_module(folder)?;
        let found = match other_weights::describe_folder(transformer) {
            _ if transformer.join(MANIFEST).is_file() => {
                Message::new("a bundle").with_hint("`kivu serve` serves it")
            }
            none if none.problem() == other_weights::NONE => {
                Message::new("neither `config.json` nor `model.….bin`")
            }
            others => others,
        };
        let expected = |found: &str| {
            format!(
                "expected a model in `{}` (`config.json`, `{TOKENIZER}`, and `model.safetensors` \
                 or `model.onnx`, or for a Bergamot student `model.….bin`, `lex.….bin` and \
                 `{TOKENIZER}`, or a fastText model `….bin` or `….ftz`), but found {found}",
                transformer.display()
            )
        };
        Err(Error::model(found.map(expected)))
    } else if seq2seq::is_in(plan) {
        Ok(Kind::Seq2Seq)
    } else if Weights::are_in(transformer) && (is_supported(transformer) || !export::is_in(folder))
    {
        Ok(Kind::Encoder)
    } else if export::is_in(folder) {
        Ok(Kind::Export)
    } else {
        Err(missing(transformer))
    }
}

/// Refuses a folder with a `config.json`, but with neither weights nor an export.
fn missing(folder: &ModelFolder) -> Error {
    Error::model(other_weights::describe_folder(folder).map(|found| {
        format!(
            "expected {}, or an ONNX export (`model.onnx`), in `{}`, but found {found}",
            quoted(&weights::FILES),
            folder.display()
        )
    }))
}

/// Refuses a module list that begins with a class other than those that have a model's files.
fn check_first_module(folder: &ModelFolder) -> Result<()> {
    /// Names of `Transformer` in old versions of sentence-transformers, by architecture.
    const OLD: [&str; 7] = [
        "ALBERT",
        "BERT",
        "CamemBERT",
        "DistilBERT",
        "RoBERTa",
        "XLMRoBERTa",
        "XLNet",
    ];
    let list = modules(folder)?;
    let Some(first) = list.first() else {
        return Ok(());
    };
    let reason: Message = match first.class() {
        "Transformer" | "MLMTransformer" | "StaticEmbedding" => return Ok(()),
        class if OLD.contains(&class) => Message::new("an old name")
            .with_hint("write `sentence_transformers.models.Transformer` in its place"),
        "CLIPModel" => "Kivu runs models for texts only".into(),
        _ => "Kivu runs models that begin with `Transformer` or `StaticEmbedding`".into(),
    };
    let place = format!(
        "the first module in `{MODULES}`, `{}`, is not supported",
        first.path_of_class()
    );
    Err(Error::model(reason.at(place)))
}

/// Whether `folder` has a supported encoder. Weights of other models are ignored if there is an export.
fn is_supported(folder: &ModelFolder) -> bool {
    ConfigFile::open(folder).is_ok_and(|config| Family::named(config.model_type()).is_some())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn a_build_parses_a_settings_file_once() {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/tiny-bert");
        let copy = tempfile::tempdir().unwrap();
        let settings = ["config.json", "modules.json", "tokenizer_config.json"];
        for name in
            settings
                .into_iter()
                .chain(["1_Pooling/config.json", "model.safetensors", TOKENIZER])
        {
            let to = copy.path().join(name);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(source.join(name), to).unwrap();
        }
        let plan = Plan {
            folder: ModelFolder::new(copy.path()),
            ..Plan::default()
        };
        assert!(check_keys(&plan).unwrap().is_empty());
        // From now on, none of them can be parsed.
        for name in settings {
            fs::write(copy.path().join(name), "{").unwrap();
        }
        let build = Build {
            plan: &plan,
            scratch: copy.path(),
            runtime: &|| Err(Error::config("expected no runtime")),
            progress: &(),
        };
        assert_eq!(open(build).unwrap().architecture, "BertModel");
        let other = Plan {
            folder: ModelFolder::new(copy.path()),
            ..Plan::default()
        };
        assert!(check_keys(&other).is_err());
    }
}
