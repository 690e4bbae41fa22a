//! Loading a bundle that translates: two graphs, one or two tokenizers, perhaps a shortlist.

use std::{sync::Arc, thread};

use super::{Loaded, LoadedParts, Sharing, is_mapped, lacks, mapped_files, panicked, read_graphs, runtime};
use crate::{
    backend::{
        onnx::{MappedFiles, OnnxSeq2Seq, Parallelism},
        routing::Route,
        triton::Fleet,
    },
    config::{Config, Policy},
    error::{Error, Result},
    pipeline::translation::{
        TranslationParts, TranslationPipeline, TranslationSettings, shortlist::Shortlist,
    },
    repository::{
        Bundle,
        bundle::{PIECES, TOKENIZER},
    },
    telemetry::starting,
    tokenizer::Tokenizer,
};

/// What reads and writes texts.
struct Words {
    tokenizer: Arc<Tokenizer>,
    target: Arc<Tokenizer>,
    shortlist: Option<Shortlist>,
}

/// Loads what is in a bundle, side by side, as the bundles of other tasks are. A model that runs on a fleet only
/// needs no graphs.
pub(super) fn load(bundle: &Bundle, config: &Config, sharing: &Sharing) -> Result<Loaded> {
    let (_, policy, fleet, remote) = sharing;
    let manifest = bundle.manifest();
    let mut settings = manifest.translation.clone().ok_or_else(|| lacks(manifest, "translation"))?;
    let limit = config.limits.tokens.unwrap_or(usize::MAX);
    settings.max_tokens = settings.max_tokens.min(limit);
    let fleet = (*policy != Policy::Local).then(|| Fleet::new(fleet, remote).map(Arc::new)).transpose()?;
    if *policy == Policy::Fleet {
        let Words { tokenizer, target, shortlist } = read_words(bundle, &settings)?;
        let parts = TranslationParts { tokenizer, target, shortlist, route: Route::seq2seq(None, fleet) };
        let pipeline = LoadedParts::Translator(TranslationPipeline::new(parts, settings)?);
        return Ok(Loaded { parts: pipeline, arithmetic: None, files: Arc::default() });
    }
    let read = read_files(bundle, &settings);
    let files = mapped_files(bundle, config, &read)?;
    thread::scope(|scope| {
        let words = scope.spawn(|| {
            let words = read_words(bundle, &settings)?;
            // What is read into memory is hashed on its way.
            if is_mapped(bundle, config) {
                starting("verify", || bundle.verify(&read))?;
            }
            Ok(words)
        });
        let sequences = open_graphs(bundle, &settings, config, &files);
        let words = words.join().unwrap_or_else(|_| Err(panicked(&manifest.name)));
        let Words { tokenizer, target, shortlist } = words?;
        let (sequences, arithmetic) = sequences?;
        let route = Route::seq2seq(Some(Arc::new(sequences)), fleet);
        files.require_loaded()?;
        let parts = TranslationParts { tokenizer, target, shortlist, route };
        let pipeline = LoadedParts::Translator(TranslationPipeline::new(parts, settings.clone())?);
        Ok(Loaded { parts: pipeline, arithmetic: Some(arithmetic), files: Arc::clone(&files) })
    })
}

fn read_words(bundle: &Bundle, settings: &TranslationSettings) -> Result<Words> {
    let tokenizer = Arc::new(starting("tokenizer", || bundle.tokenizer())?);
    let target = match &settings.target_tokenizer {
        Some(name) => Arc::new(Tokenizer::from_json(&bundle.read(name)?)?),
        None => Arc::clone(&tokenizer),
    };
    let shortlist = settings.shortlist.as_ref();
    let shortlist = shortlist.map(|name| Shortlist::from_bytes(&bundle.read(name)?)).transpose()?;
    Ok(Words { tokenizer, target, shortlist })
}

/// The files that are read, and verified then.
fn read_files<'a>(bundle: &'a Bundle, settings: &'a TranslationSettings) -> Vec<&'a str> {
    [TOKENIZER, PIECES, &bundle.manifest().graph, &settings.decoder.graph]
        .into_iter()
        .chain(settings.target_tokenizer.as_deref())
        .chain(settings.shortlist.as_deref())
        .collect()
}

fn open_graphs(
    bundle: &Bundle,
    settings: &TranslationSettings,
    config: &Config,
    files: &Arc<MappedFiles>,
) -> Result<(OnnxSeq2Seq, String)> {
    let runtime = runtime(config)?;
    let manifest = bundle.manifest();
    let (graphs, arithmetic) =
        read_graphs(bundle, [&manifest.graph, &settings.decoder.graph], config, files)?;
    let threads = config.threads();
    // Sources that each have a shortlist of their own have no batch in common.
    let parallel = match settings.shortlist {
        Some(_) => Parallelism::AcrossSources(threads),
        None => Parallelism::WithinStep(threads),
    };
    let sequences = starting("session", || OnnxSeq2Seq::open(runtime, graphs, parallel))?;
    for (expected, found) in
        [&manifest.signature, &settings.decoder.signature].into_iter().zip(sequences.signatures())
    {
        if expected != found {
            return Err(Error::model(format!(
                "expected a graph of `{}` to be {expected}, as its manifest says, but it is {found}",
                manifest.name
            )));
        }
    }
    Ok((sequences, arithmetic))
}
