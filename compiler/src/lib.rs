//! The model compiler: from weights to a bundle with measured quality, without Python or PyTorch.
//!
//! Programs that run models by name call [`load`]; [`build`] is for tools that make bundles.
//!
//! ```no_run
//! # let home = tempfile::tempdir()?;
//! use kivu::{Deadline, cloud::Cloud, config::Config, task::{classification::ClassificationParameters, tokens::TokenParameters}};
//! use kivu_compiler::library::model_library::Options;
//!
//! # let name = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/models/tiny-static");
//! # let config = Config { home: home.path().to_owned(), ..Config::default() };
//! # let runtime = tokio::runtime::Runtime::new()?;
//! let model = kivu_compiler::load(name, &Options::default(), &config, &Cloud::default())?;
//! let reader = model.token_reader(TokenParameters::default())?;
//! let tokens = runtime.block_on(reader.run(vec!["A cat sat.".to_owned()], Deadline::none()))?;
//! assert!(tokens[0].len() >= 3);
//!
//! // Models refuse other tasks.
//! let error = model.classifier(&ClassificationParameters::default()).unwrap_err();
//! assert!(error.to_string().starts_with("expected a model for `text-classification`"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[doc(hidden)]
pub mod bergamot;
mod build;
#[doc(hidden)]
pub mod encoder;
pub mod export;
#[doc(hidden)]
pub mod fast_text;
#[doc(hidden)]
pub mod files;
#[cfg(test)]
mod fixture;
mod keys;
pub mod library;
mod model_types;
pub mod onnx;
#[doc(hidden)]
pub mod plan;
pub mod quality;
#[doc(hidden)]
pub mod quantize;
mod sentence_transformers;
#[doc(hidden)]
pub mod seq2seq;
#[doc(hidden)]
pub mod tokenizers;

pub use self::{
    build::bundle::Built,
    library::resolve::load,
    plan::{
        LoadRuntime, Request,
        opened_model::FILES as BUNDLE_FILES,
        progress::Progress,
        recipe::{QualityFloor, Recipe, Strategy},
        recipes::{EmbeddedRecipe, RECIPES},
        scratch::{Scratch, abandon},
        task::RequestedTask,
    },
};
use self::{files::model_folder::ModelFolder, library::hub::Fetched, plan::Build};
use kivu::{
    Result,
    repository::{bundle::Bundle, folder::Destination, manifest::check_name},
};

/// Builds a bundle.
///
/// - [`Request::out`] is not written to before the bundle is complete and its quality above the floor.
/// - Only a bundle is replaced there: see [`Destination`].
/// - Unsupported sources are refused; the error names them and the supported ones.
pub fn build(
    request: &Request,
    runtime: LoadRuntime<'_>,
    progress: &dyn Progress,
) -> Result<Built> {
    build_from(request, None, runtime, progress)
}

/// Builds a bundle from a folder, which may belong to a hub repository.
fn build_from(
    request: &Request,
    fetched: Option<&Fetched>,
    runtime: LoadRuntime<'_>,
    progress: &dyn Progress,
) -> Result<Built> {
    request.name.as_deref().map_or(Ok(()), check_name)?;
    let destination = Destination::new(&request.out)?;
    let mut plan = plan::plan(request, progress)?;
    if let Some(Fetched {
        origin,
        adapter,
        encoder,
        ..
    }) = fetched
    {
        plan.from.clone_from(origin);
        // The repository's name is an alias in requests.
        plan.aliases
            .extend(origin.split('@').next().map(str::to_owned));
        plan.adapter = adapter.as_deref().map(ModelFolder::new);
        plan.encoder = encoder.as_deref().map(ModelFolder::new);
    }
    let plan = plan.with_adapters_modules()?;
    let scratch = Scratch::new_in(destination.parent())?;
    let build = Build {
        plan: &plan,
        scratch: scratch.path(),
        runtime,
        progress,
    };
    let mut built = build::bundle::write(build)?;
    destination.replace(&built.bundle.path(""))?;
    built.bundle = Bundle::open(&request.out)?;
    Ok(built)
}
