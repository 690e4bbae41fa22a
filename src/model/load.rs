//! Loads bundle files: tokenizers and graphs in parallel.

use std::{iter, sync::Arc, thread};

use super::{
    loaded::{
        Loaded, LoadedRoute, Local, Placement, check_signature, engine, open_natively,
        read_tokenizers,
    },
    mapped_files::OpenedFiles,
};
use crate::repository::{
    Bundle, Int8Products, Manifest, WeightForm,
    bundle::{Home, PIECES, RANGES, TOKENIZER},
    remote,
};
use kivu_base::{
    Error, Result,
    config::{Config, Policy},
    onnx_proto::ModelProto,
};
use kivu_core::{
    backend::{
        Engine, MappedFiles, RemoteSource, external_files::require_known_files,
        processor::Int8Instructions, routing::Route, tensors::TensorEncoder,
    },
    observer::time_start,
    pipeline::embedding::EmbeddingSettings,
};
use kivu_fleet::Fleet;
use kivu_onnx::{
    ExternalWeights, Graph, OnnxBackend, OnnxSeq2Seq, Parallelism, Runtime, keeps_signed_weights,
    library,
};

/// Loads a bundle. A bundle in S3 is read into memory, unless there is a cache on disk.
///
/// One thread reads the tokenizers while another creates the session; then both hash the weights. Every hash is verified
/// before this returns. A model that runs only on a fleet needs neither graphs nor weights.
pub fn load(bundle: &Bundle, config: &Config, placement: &Placement) -> Result<Loaded> {
    let (Some(cache), Home::S3(..)) = (&config.cache, bundle.home()) else {
        return load_files(bundle, config, placement);
    };
    let cached = remote::cached(bundle, cache)?;
    load_files(&cached, config, placement).or_else(|error| {
        if cached.verify().is_ok() {
            return Err(error);
        }
        tracing::warn!(
            "the cached bundle is damaged and is fetched again: {}",
            error.chain()
        );
        load_files(&remote::refetch(bundle, cache)?, config, placement)
    })
}

/// Loads a bundle from its location.
fn load_files(bundle: &Bundle, config: &Config, placement: &Placement) -> Result<Loaded> {
    let Placement {
        policy,
        fleet,
        remote_name,
        ..
    } = placement;
    let fleet: Option<Arc<dyn RemoteSource>> = match policy {
        Policy::Local => None,
        Policy::Auto | Policy::Fleet => Some(Arc::new(Fleet::new(fleet, remote_name)?)),
    };
    let manifest = bundle.manifest();
    let settings = manifest.settings.seq2seq();
    let labels = manifest.settings.label_encoder();
    if *policy == Policy::Fleet {
        if labels.is_some() {
            return Err(Error::config(format!(
                "expected `policy` `local` or `auto` for `{}`, whose encoder for labels runs in this process, but found \
                 `fleet`",
                manifest.name
            )));
        }
        let tokenizers = read_tokenizers(bundle, settings)?;
        return Ok(Loaded {
            tokenizers,
            route: match settings {
                None => {
                    LoadedRoute::Encoder(Route::encoder(None, fleet, manifest.signature.clone()))
                }
                Some(_) => LoadedRoute::Seq2Seq(Route::seq2seq(None, fleet)),
            },
            label_encoder: None,
            arithmetic: None,
            files: None,
        });
    }
    // Files that are verified while they are read; all others are mapped.
    let graphs =
        iter::once(&manifest.graph).chain(settings.map(|settings| &settings.decoder.graph));
    let of_seq2seq = settings
        .into_iter()
        .flat_map(|settings| [&settings.target_tokenizer, &settings.shortlist]);
    let queries = manifest
        .settings
        .embedding()
        .and_then(EmbeddingSettings::static_queries);
    let read: Vec<&str> = [TOKENIZER, PIECES, RANGES]
        .into_iter()
        .chain(queries.map(|queries| queries.weights.as_str()))
        .chain(graphs.map(String::as_str))
        .chain(of_seq2seq.flatten().map(String::as_str))
        .chain(
            labels
                .into_iter()
                .flat_map(|labels| [labels.graph.as_str(), &labels.tokenizer]),
        )
        .collect();
    let is_mapped = config.map_weights && matches!(bundle.home(), Home::Folder(_));
    let mapped = manifest.files.iter().map(|file| file.name.as_str());
    let mapped = mapped
        .filter(|name| !read.contains(name))
        .map(|name| bundle.path(name));
    let mapped = is_mapped
        .then(|| OpenedFiles::open(mapped).map(Arc::new))
        .transpose()?;
    let files = mapped.clone().map(|mapped| mapped as Arc<dyn MappedFiles>);
    // Files that are read into memory are hashed while they are read.
    let verification = is_mapped.then(|| bundle.verification(&read)).transpose()?;
    let verify = || {
        verification
            .as_ref()
            .map_or(Ok(()), |verification| verification.work())
    };
    thread::scope(|scope| {
        // Two threads, since most functions have two CPUs.
        let tokenizers = scope.spawn(|| {
            let tokenizers = read_tokenizers(bundle, settings)?;
            if is_mapped {
                time_start("verify", verify)?;
            }
            Ok(tokenizers)
        });
        let opened = open_graphs(bundle, config, files.as_ref());
        let helped = if opened.is_ok() { verify() } else { Ok(()) };
        let panicked = |_| {
            Err(Error::model(format!(
                "loading `{}` panicked",
                manifest.name
            )))
        };
        let tokenizers = tokenizers.join().unwrap_or_else(panicked)?;
        helped?;
        verification
            .as_ref()
            .map_or(Ok(()), |verification| verification.finish())?;
        let (local, arithmetic) = opened?;
        mapped.map_or(Ok(()), |mapped| mapped.require_loaded())?;
        let (route, label_encoder) = local.route(fleet, manifest, engine(config, manifest));
        Ok(Loaded {
            tokenizers,
            route,
            label_encoder,
            arithmetic: Some(arithmetic),
            files: files.clone(),
        })
    })
}

/// Creates sessions for a bundle's graphs, with weights in `mapped` files or in memory, and reports
/// their matmul arithmetic.
fn open_graphs(
    bundle: &Bundle,
    config: &Config,
    mapped: Option<&Arc<dyn MappedFiles>>,
) -> Result<(Local, String)> {
    if engine(config, bundle.manifest()) == Engine::Native {
        return open_natively(bundle, config, mapped);
    }
    let library = library::locate(config.onnxruntime.as_deref(), &config.home)?;
    let runtime = time_start("library", || Runtime::load(&library))?;
    let manifest = bundle.manifest();
    let threads = config.threads();
    let Some(settings) = manifest.settings.seq2seq() else {
        let open = |graph: Graph| {
            let backend = time_start("session", || OnnxBackend::open(runtime, graph, threads));
            TensorEncoder::shared(backend?)
        };
        let (backend, labels, arithmetic) = match manifest.settings.label_encoder() {
            None => {
                let ([graph], arithmetic) = read_graphs(bundle, [&manifest.graph], mapped)?;
                (open(graph)?, None, arithmetic)
            }
            Some(settings) => {
                let (graphs, arithmetic) =
                    read_graphs(bundle, [&manifest.graph, &settings.graph], mapped)?;
                let [graph, labels] = graphs;
                (open(graph)?, Some(open(labels)?), arithmetic)
            }
        };
        check_signature(manifest, &manifest.signature, backend.signature())?;
        return Ok((Local::Encoder(backend, labels), arithmetic));
    };
    let (graphs, arithmetic) =
        read_graphs(bundle, [&manifest.graph, &settings.decoder.graph], mapped)?;
    // Sources with different shortlists cannot share a batch.
    let parallelism = match settings.shortlist {
        Some(_) => Parallelism::AcrossSources(threads),
        None => Parallelism::WithinStep(threads),
    };
    let backend = time_start("session", || {
        OnnxSeq2Seq::open(runtime, graphs, parallelism)
    })?;
    let [encoder, decoder] = backend.signatures();
    check_signature(manifest, &manifest.signature, encoder)?;
    check_signature(manifest, &settings.decoder.signature, decoder)?;
    Ok((Local::Seq2Seq(Arc::new(backend)), arithmetic))
}

/// Reads graphs by name, and reports their matmul arithmetic. Weights that are not mapped are read into
/// memory once for all graphs.
fn read_graphs<const COUNT: usize>(
    bundle: &Bundle,
    names: [&str; COUNT],
    mapped: Option<&Arc<dyn MappedFiles>>,
) -> Result<([Graph; COUNT], String)> {
    let manifest = bundle.manifest();
    // Verified while they are read, since they are parsed.
    let graphs = names
        .iter()
        .map(|name| bundle.read(name))
        .collect::<Result<Vec<_>>>()?;
    let arithmetic = arithmetic(manifest, &graphs)?;
    if let Some(mapped) = mapped {
        for graph in &graphs {
            require_known_files(graph, |name| manifest.file(name).is_some())?;
        }
        let graphs = names.map(|name| Graph::File {
            path: bundle.path(name),
            mapped: Some(Arc::clone(mapped)),
        });
        return Ok((graphs, arithmetic));
    }
    let mut weights =
        ExternalWeights::of(&graphs, |name| manifest.file(name).map(|file| file.size))?;
    time_start("weights", || {
        weights.files().iter().try_for_each(|name| {
            let mut file = weights.file(name);
            bundle.stream(name, |piece| file.fill(piece))
        })
    })?;
    let graphs = Graph::in_memory(graphs, weights)?;
    let graphs = graphs
        .try_into()
        .map_err(|_| Error::model("expected as many graphs as names"))?;
    Ok((graphs, arithmetic))
}

/// Matmul arithmetic in ONNX Runtime on this processor.
fn arithmetic(manifest: &Manifest, graphs: &[Vec<u8>]) -> Result<String> {
    WeightForm::of(manifest).arithmetic(Engine::Onnx, || {
        if manifest.engine == Engine::Native {
            // Former versions wrote functions with integer products.
            for graph in graphs {
                let functions = ModelProto::from_bytes(graph)?.functions;
                let mut nodes = functions.iter().flat_map(|function| &function.node);
                if nodes.any(|node| node.op_type == "MatMulInteger") {
                    return Ok(Int8Products::Unsigned);
                }
            }
            return Ok(Int8Products::Fp32);
        }
        for graph in graphs {
            if Int8Instructions::detected().saturate() && keeps_signed_weights(graph)? {
                tracing::warn!(
                    model = manifest.name,
                    "int8 products of this bundle saturate on this processor, which costs quality; build it again"
                );
                return Ok(Int8Products::Signed);
            }
        }
        Ok(Int8Products::Unsigned)
    })
}
