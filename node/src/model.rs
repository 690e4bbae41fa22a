//! The class `Model`.

use std::sync::{Arc, Mutex};

use kivu::{locked, pipeline::embedding::vectors::StoredVector};
use kivu_bindings::{Joined, Source, Task, describe, on_thread, run};
use napi::{
    Either, Env, JsString,
    bindgen_prelude::{ClassInstance, Either3, Float32Array, Int8Array, Object, Uint8Array},
};
use napi_derive::napi;

use crate::{
    call::{Cancellation, in_background, promise},
    failure::Failure,
    texts::Inputs,
};

type Cancelled<'env> = Option<ClassInstance<'env, Cancellation>>;

/// A model in this process.
#[napi]
pub struct Model {
    source: Source,
    /// `None` once it is closed.
    opened: Mutex<Option<Arc<kivu::Model>>>,
}

/// Vectors of one format.
#[napi(object)]
pub struct Vectors {
    /// The vectors one after another.
    pub values: Either3<Float32Array, Int8Array, Uint8Array>,
    /// How many vectors each text has.
    pub counts: Vec<u32>,
}

/// Loads a model by name; the options are JSON.
#[napi]
pub fn load<'env>(
    env: &'env Env,
    name: String,
    options: String,
    cancellation: Cancelled<'_>,
) -> napi::Result<Object<'env>> {
    let work = async move {
        let source = Source::new(name, &options)?;
        let loading = source.clone();
        let model = on_thread(move || loading.load(kivu_aws::cloud)).await?;
        Ok((source, model))
    };
    promise(env, cancellation, work, |(source, model)| Model {
        source,
        opened: Mutex::new(Some(Arc::new(model))),
    })
}

#[napi]
impl Model {
    /// The model's name, task, limits and vectors, as JSON.
    #[napi]
    pub fn description(&self, env: Env) -> napi::Result<String> {
        let described = self.model().and_then(|model| Ok(describe(&model)?));
        described.map_err(|failure| failure.into_error(env))
    }

    /// Runs a task on a batch of inputs, whose first one has the position `first`. Results without vectors are JSON.
    #[napi]
    pub fn run<'env>(
        &self,
        env: &'env Env,
        task: String,
        inputs: Vec<Either<JsString<'_>, Vec<JsString<'_>>>>,
        first: u32,
        parameters: String,
        cancellation: Cancelled<'_>,
    ) -> napi::Result<Object<'env>> {
        let inputs = Inputs::copy(inputs)?;
        let model = self.model();
        let work = async move {
            let (model, task) = (model?, task.parse::<Task>()?);
            let inputs = inputs.read(task, first)?;
            Ok(run(&model, task, inputs, &parameters).await?.joined()?)
        };
        promise(env, cancellation, work, |joined| match joined {
            Joined::Vectors { values, counts } => Either::A(Vectors {
                values: match values {
                    StoredVector::Float(values) => Either3::A(values.into()),
                    StoredVector::Int8(values) => Either3::B(values.into()),
                    StoredVector::Uint8(values) => Either3::C(values.into()),
                },
                counts,
            }),
            Joined::Json(json) => Either::B(json),
        })
    }

    /// Frees the model once its calls end.
    #[napi]
    pub fn close(&self) {
        if let Some(model) = locked(&self.opened).take() {
            in_background(move || drop(model));
        }
    }
}

impl Model {
    fn model(&self) -> Result<Arc<kivu::Model>, Failure> {
        locked(&self.opened).clone().ok_or_else(|| {
            let name = self.source.name();
            Failure::new(
                "ClosedError",
                format!("expected an open model, but `{name}` is closed; load it again"),
            )
        })
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.close();
    }
}
