//! Metrics of models: state, memory and last use.

use std::sync::Arc;

use super::{Catalog, Entry, ModelState};
use kivu_telemetry::{Otlp, Reading};

/// Metrics by model.
pub const MODELS: [&str; 4] = [
    "kivu_model_loaded",
    "kivu_model_memory_bytes",
    "kivu_model_loads",
    "kivu_model_last_use_timestamp_seconds",
];
/// The memory limit of models on demand, and what they have reserved.
pub const BUDGET: [&str; 2] = ["kivu_models_memory_limit_bytes", "kivu_models_memory_bytes"];

/// Exports the metrics of the models in `catalog`.
pub fn export(catalog: &Arc<Catalog>, otlp: &Otlp) {
    let catalog = Arc::clone(catalog);
    let names = [
        &MODELS[..],
        if catalog.is_on_demand() { &BUDGET } else { &[] },
    ]
    .concat();
    otlp.observe(&names, move || read(&catalog.entries(), catalog.budget()));
}

/// Reads the metrics of models, and of their budget if they are loaded on demand.
pub fn read(models: &[Arc<Entry>], budget: Option<(u64, u64)>) -> Vec<Reading> {
    let by_model = models.iter().flat_map(|model| {
        let values = [
            Some(f64::from(u8::from(model.state() == ModelState::Loaded))),
            Some(model.memory().unwrap_or(0) as f64),
            Some(model.loads() as f64),
            model.last_use().map(|time| time.as_secs_f64()),
        ];
        MODELS.into_iter().zip(values).filter_map(|(name, value)| {
            Some(Reading {
                name,
                model: Some(model.name.clone()),
                value: value?,
            })
        })
    });
    let budget = budget.into_iter().flat_map(|(limit, used)| {
        let values = BUDGET.into_iter().zip([limit, used]);
        values.map(|(name, value)| Reading {
            name,
            model: None,
            value: value as f64,
        })
    });
    by_model.chain(budget).collect()
}
