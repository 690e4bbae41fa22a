//! The model compiler: from weights to a bundle whose quality was measured, without Python or PyTorch.

mod bergamot;
mod bundle;
mod calibration;
mod config;
pub mod cost;
mod encoder;
pub mod export;
pub mod fetch;
mod files;
mod functions;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../../fuzz/readers/build.rs"]
pub(crate) mod fuzzing;
mod layers;
mod lora;
mod modules;
pub mod onnx;
mod plan;
pub mod quality;
mod quantise;
mod recipe;
mod scratch;
mod sentence_transformers;
mod sentencepiece;
mod source;
mod static_embedding;
mod translation;
mod weights;

use self::{cost::Comparison, plan::Build, scratch::Scratch};
pub use self::{
    plan::{Progress, Request},
    recipe::{QualityFloor, Recipe, Strategy},
    scratch::abandon,
};
use crate::{
    backend::onnx::Runtime,
    error::Result,
    repository::{bundle::Bundle, folder::Destination},
};

/// The result of a build.
#[derive(Debug)]
pub struct Built {
    /// The bundle in the requested folder.
    pub bundle: Bundle,
    /// The cost before and after quantisation; none if the build did not quantise.
    pub comparison: Option<Comparison>,
    /// A remark on the quality, or on the precision that was chosen.
    pub note: Option<String>,
}

/// Builds a bundle.
///
/// - [`Request::out`] is not written to before the bundle is complete and its quality above the floor.
/// - Only a bundle is replaced there: see [`Destination`].
/// - Unsupported sources are refused by name, with the supported ones.
pub fn build(request: &Request, runtime: Runtime, progress: &dyn Progress) -> Result<Built> {
    let destination = Destination::new(&request.out)?;
    let plan = plan::plan(request, progress)?;
    let scratch = Scratch::new_in(destination.parent())?;
    let build = Build { plan: &plan, scratch: scratch.path(), runtime, progress };
    let bundle::Written { folder, comparison, note } = bundle::write(build)?;
    destination.replace(&folder)?;
    Ok(Built { bundle: Bundle::open(&request.out)?, comparison, note })
}
