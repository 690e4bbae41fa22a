//! Rotary position settings in a `config.json`.

use serde::Deserialize;

use crate::{
    config::ConfigFile,
    layers::{Rotary, Scaling},
};
use kivu::error::{Error, Result};

/// An entry in `rope_parameters`, or `rope_scaling` in older files.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Rope {
    rope_type: Option<String>,
    /// Former name for `rope_type`; files by some `transformers` versions have both.
    r#type: Option<String>,
    pub(super) rope_theta: Option<f64>,
    factor: Option<f64>,
    partial_rotary_factor: Option<f64>,
    /// Option in GTE's scaling.
    mixed_b: Option<f64>,
    original_max_position_embeddings: Option<usize>,
}

impl Rope {
    /// The settings for all layers.
    pub(super) fn read(config: &ConfigFile) -> Result<Self> {
        let scaling: Option<Self> = config.get("rope_scaling")?;
        let mut rope = config.get("rope_parameters")?.or(scaling).unwrap_or_default();
        if rope.rope_theta.is_none() {
            rope.rope_theta = config.get("rope_theta")?;
        }
        Ok(rope)
    }

    /// Reads `rope_scaling` alone, for families with other per-layer settings.
    pub(super) fn without_theta(config: &ConfigFile) -> Result<Self> {
        Ok(config.get("rope_scaling")?.unwrap_or_default())
    }

    /// The scaling, which must be one of `supported`. `positions` is the training length.
    pub(super) fn scaling(&self, supported: &[&str], positions: usize) -> Result<Scaling> {
        let kind = self.rope_type.as_ref().or(self.r#type.as_ref()).map_or("default", String::as_str);
        if let Some(found) = self.partial_rotary_factor.filter(|factor| *factor != 1.0) {
            return Err(Error::model(format!(
                "expected rotary positions without `partial_rotary_factor`, but found {found}"
            )));
        }
        if kind == "default" {
            return Ok(Scaling::None);
        }
        if !supported.contains(&kind) {
            let names: String = supported.iter().map(|name| format!(", `{name}`")).collect();
            return Err(Error::model(format!(
                "expected rotary positions without scaling (`default`){names}, but found `{kind}`"
            )));
        }
        if let Some(found) = self.mixed_b {
            return Err(Error::model(format!(
                "expected `{kind}` scaling without `mixed_b`, but found {found}"
            )));
        }
        let factor = self.factor.filter(|factor| *factor >= 1.0 && factor.is_finite()).ok_or_else(|| {
            let found = self.factor.map_or_else(|| "none".to_owned(), |factor| factor.to_string());
            Error::model(format!("expected a `factor` of at least 1 for `{kind}` scaling, but found {found}"))
        })?;
        Ok(match kind {
            "ntk" => Scaling::Ntk { factor },
            _ => {
                let positions = self.original_max_position_embeddings.unwrap_or(positions);
                Scaling::DynamicNtk { factor, positions }
            }
        })
    }
}

/// Rotary embedding for `fraction` of a head's `width`.
pub(super) fn rotary(width: usize, fraction: f64, base: f64, scaling: Scaling) -> Result<Rotary> {
    let rotated = (width as f64 * fraction) as usize;
    if !(fraction > 0.0 && fraction <= 1.0) || rotated < 2 || !rotated.is_multiple_of(2) {
        return Err(Error::model(format!(
            "expected an even number of rotated values in a head, but found {fraction} of {width}"
        )));
    }
    if !(base > 1.0 && base.is_finite()) {
        return Err(Error::model(format!("expected a rotary base above 1, but found {base}")));
    }
    if matches!(scaling, Scaling::DynamicNtk { positions, .. } if positions == 0 || rotated == 2) {
        return Err(Error::model(format!(
            "expected dynamic scaling from at least one position, with more than 2 rotated values, but found {rotated}"
        )));
    }
    Ok(Rotary { width: rotated, base, scaling })
}
