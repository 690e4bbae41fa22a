//! Rotary position settings in a `config.json`.

use std::f64::consts::TAU;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    files::config::ConfigFile,
    onnx::layers::{QueryGrowth, Rotary, Scaling},
};
use kivu::{Error, Result, error::quoted};

/// The type without scaling.
pub const DEFAULT: &str = "default";

/// An entry in `rope_parameters`, or `rope_scaling` in older files.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Rope {
    rope_type: Option<String>,
    /// Former name for `rope_type`; files by some `transformers` versions have both.
    r#type: Option<String>,
    pub rope_theta: Option<f64>,
    factor: Option<f64>,
    partial_rotary_factor: Option<f64>,
    /// Option in GTE's scaling.
    mixed_b: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    // Llama 3's.
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    // YaRN's and LongRoPE's.
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    /// `null` is false.
    #[serde(default = "truncates")]
    truncate: Option<bool>,
    short_factor: Option<Vec<f64>>,
    long_factor: Option<Vec<f64>>,
    /// Ministral 3's.
    llama_4_scaling_beta: Option<f64>,
}

/// A missing key differs from `null`.
fn truncates() -> Option<bool> {
    Some(true)
}

impl Rope {
    /// Rotary positions without scaling.
    pub fn of_base(base: f64) -> Self {
        Self {
            rope_theta: Some(base),
            ..Self::default()
        }
    }

    /// The settings for all layers. `rope_scaling` takes precedence, as in `transformers` 5.
    pub fn read(config: &ConfigFile) -> Result<Self> {
        Self::read_or(config, Self::default())
    }

    /// Reads the settings of a class with its own `default`.
    pub fn read_or(config: &ConfigFile, default: Self) -> Result<Self> {
        let is_empty =
            |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
        let is_given = config
            .value("rope_scaling")
            .is_some_and(|value| !is_empty(value));
        let field = if is_given {
            "rope_scaling"
        } else {
            "rope_parameters"
        };
        let mut rope: Self = config.get(field)?.unwrap_or(default);
        let theta = config.get("rope_theta");
        if rope.rope_theta.is_none() {
            rope.rope_theta = theta?;
        }
        Ok(rope)
    }

    /// Reads `rope_scaling` alone, for families with other per-layer settings.
    pub fn without_theta(config: &ConfigFile) -> Result<Self> {
        Ok(config.get("rope_scaling")?.unwrap_or_default())
    }

    /// The scaling's type.
    pub fn kind(&self) -> &str {
        self.rope_type
            .as_ref()
            .or(self.r#type.as_ref())
            .map_or(DEFAULT, String::as_str)
    }

    /// The scaling, which must be one of `supported`. `positions` is the training length.
    pub fn scaling(&self, supported: &[&str], positions: usize) -> Result<Scaling> {
        let kind = self.kind();
        self.expect_whole_heads()?;
        if kind == DEFAULT {
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
        Ok(match kind {
            "ntk" => Scaling::Ntk {
                factor: self.factor()?,
            },
            "linear" => Scaling::Linear {
                factor: self.factor()?,
            },
            _ => {
                let positions = self.original_max_position_embeddings.unwrap_or(positions);
                Scaling::DynamicNtk {
                    factor: self.factor()?,
                    positions,
                }
            }
        })
    }

    fn expect_whole_heads(&self) -> Result<()> {
        match self.partial_rotary_factor.filter(|factor| *factor != 1.0) {
            None => Ok(()),
            Some(found) => Err(Error::model(format!(
                "expected rotary positions without `partial_rotary_factor`, but found {found}"
            ))),
        }
    }

    /// The scaling in a decoder with `positions`, as in `transformers`; for heads with `width` values.
    fn of_decoder(&self, [width, positions]: [usize; 2], base: f64) -> Result<Scaling> {
        let original = self.original_max_position_embeddings.unwrap_or(positions);
        match self.kind() {
            // These types do not read `partial_rotary_factor`, or not as a part of a head.
            DEFAULT => return Ok(Scaling::None),
            "proportional" => return self.proportional(width),
            _ => self.expect_whole_heads()?,
        }
        match self.kind() {
            "dynamic" => Ok(Scaling::DynamicNtk {
                factor: self.factor()?,
                positions,
            }),
            "llama3" => self.llama3(),
            "yarn" => self.yarn(width, base, original),
            "longrope" => self.long(width, [original, positions]),
            _ => self.scaling(
                &[
                    "linear",
                    "dynamic",
                    "llama3",
                    "yarn",
                    "longrope",
                    "proportional",
                ],
                positions,
            ),
        }
    }

    fn proportional(&self, width: usize) -> Result<Scaling> {
        let part = self.partial_rotary_factor.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&part) {
            return Err(Error::model(format!(
                "expected a `partial_rotary_factor` from 0 to 1, but found {part}"
            )));
        }
        Ok(Scaling::Proportional {
            factor: self.factor.map_or(Ok(1.0), |_| self.factor())?,
            pairs: (part * width as f64 / 2.0) as usize,
        })
    }

    /// Ministral 3's factor for queries. Types with an original length have the length of all positions by default.
    pub fn query_growth(&self, config: &ConfigFile) -> Result<QueryGrowth> {
        let positions = match self.kind() {
            "llama3" | "yarn" | "longrope" => config.get_size("max_position_embeddings")?,
            _ => None,
        };
        let period = self.original_max_position_embeddings.or(positions);
        let slope = self.llama_4_scaling_beta.map(|slope| slope as f32);
        match (slope.filter(|slope| slope.is_finite()), period) {
            (Some(slope), Some(period)) if period > 0 => Ok(QueryGrowth { slope, period }),
            _ => Err(Error::model(format!(
                "expected a finite `llama_4_scaling_beta`, and an `original_max_position_embeddings` of at least 1, but \
                 found {slope:?} and {period:?}"
            ))),
        }
    }

    fn llama3(&self) -> Result<Scaling> {
        let found = [self.low_freq_factor, self.high_freq_factor];
        let (Some(positions), [Some(slow), Some(fast)]) =
            (self.original_max_position_embeddings, found)
        else {
            return Err(Error::model(format!(
                "`llama3` scaling needs {}",
                quoted(&[
                    "low_freq_factor",
                    "high_freq_factor",
                    "original_max_position_embeddings"
                ])
            )));
        };
        if !(slow > 0.0 && fast > slow && fast.is_finite()) {
            return Err(Error::model(format!(
                "expected a `low_freq_factor` above 0, and a greater `high_freq_factor`, but found {slow} and {fast}"
            )));
        }
        Ok(Scaling::Llama3 {
            factor: self.factor()?,
            slow,
            fast,
            positions,
        })
    }

    fn yarn(&self, width: usize, base: f64, positions: usize) -> Result<Scaling> {
        let factor = self.factor()?;
        let scale = |scale: f64| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * scale * factor.ln() + 1.0
            }
        };
        let is_set = |value: &f64| *value != 0.0;
        let scales = [
            self.mscale.filter(is_set),
            self.mscale_all_dim.filter(is_set),
        ];
        let amplitude = match (self.attention_factor, scales) {
            (Some(found), _) => found,
            (None, [Some(of_angles), Some(of_all)]) => scale(of_angles) / scale(of_all),
            (None, _) => scale(1.0),
        };
        // The pair that turns this often in the training length.
        let pair =
            |turns: f64| width as f64 * (positions as f64 / (turns * TAU)).ln() / (2.0 * base.ln());
        let mut from = pair(self.beta_fast.filter(is_set).unwrap_or(32.0));
        let mut to = pair(self.beta_slow.filter(is_set).unwrap_or(1.0));
        if self.truncate.unwrap_or(false) {
            (from, to) = (from.floor(), to.ceil());
        }
        if ![amplitude, from, to]
            .iter()
            .all(|value| (*value as f32).is_finite())
        {
            return Err(Error::model(format!(
                "expected finite angles for `yarn` scaling, but found a factor of {amplitude} for them, and pairs from \
                 {from} to {to}"
            )));
        }
        Ok(Scaling::Yarn {
            factor,
            from: from.max(0.0),
            to: to.min((width - 1) as f64),
            amplitude,
        })
    }

    fn long(&self, width: usize, [original, positions]: [usize; 2]) -> Result<Scaling> {
        let list = |name: &str, factors: &Option<Vec<f64>>| {
            let factors = factors.clone().unwrap_or_default();
            let are_valid = factors
                .iter()
                .all(|factor| *factor > 0.0 && factor.is_finite());
            match factors.len() == width / 2 && are_valid {
                true => Ok(factors),
                false => Err(Error::model(format!(
                    "expected a `{name}` of {} numbers above 0 for `longrope` scaling, but found {}",
                    width / 2,
                    factors.len()
                ))),
            }
        };
        let [short, long] = [
            ("short_factor", &self.short_factor),
            ("long_factor", &self.long_factor),
        ]
        .map(|(name, factors)| list(name, factors));
        let factor = self.factor.unwrap_or(positions as f64 / original as f64);
        let amplitude = match self.attention_factor {
            Some(found) => found,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        if !(amplitude as f32).is_finite() || original < 2 {
            return Err(Error::model(format!(
                "expected an `original_max_position_embeddings` of at least 2, and a finite `attention_factor`, but found \
                 {original} and {amplitude}"
            )));
        }
        Ok(Scaling::Long {
            short: short?,
            long: long?,
            positions: original,
            amplitude,
        })
    }

    fn factor(&self) -> Result<f64> {
        self.factor
            .filter(|factor| *factor >= 1.0 && factor.is_finite())
            .ok_or_else(|| {
                let found = self
                    .factor
                    .map_or_else(|| "none".to_owned(), |factor| factor.to_string());
                let kind = self.kind();
                Error::model(format!(
                    "expected a `factor` of at least 1 for `{kind}` scaling, but found {found}"
                ))
            })
    }
}

/// A decoder's rotary positions, the same in all layers, for heads with `width` values.
pub fn of_decoder(config: &ConfigFile, width: usize) -> Result<Rotary> {
    with_base(config, width, &Rope::read(config)?, 10_000.0)
}

/// Rotary settings of gpt-oss, whose class scales positions by default.
pub fn of_gpt_oss(config: &ConfigFile, width: usize) -> Result<Rotary> {
    let default = Rope {
        rope_type: Some("yarn".to_owned()),
        factor: Some(32.0),
        original_max_position_embeddings: Some(4096),
        truncate: Some(false),
        ..Rope::default()
    };
    with_base(config, width, &Rope::read_or(config, default)?, 150_000.0)
}

/// Rotary settings of Ministral 3, whose queries grow with the position, and whose class scales positions by default.
pub fn of_ministral3(config: &ConfigFile, width: usize) -> Result<Rotary> {
    let default = Rope {
        rope_type: Some("yarn".to_owned()),
        rope_theta: Some(1e6),
        factor: Some(16.0),
        original_max_position_embeddings: Some(16_384),
        mscale: Some(1.0),
        mscale_all_dim: Some(1.0),
        truncate: truncates(),
        llama_4_scaling_beta: Some(0.1),
        ..Rope::default()
    };
    let rope = Rope::read_or(config, default)?;
    Ok(Rotary {
        growth: Some(rope.query_growth(config)?),
        ..with_base(config, width, &rope, 10_000.0)?
    })
}

/// Rotary settings of LFM2, whose class has a different default base.
pub fn of_lfm2(config: &ConfigFile, width: usize) -> Result<Rotary> {
    with_base(config, width, &Rope::read(config)?, 1e6)
}

/// Rotary settings of one kind of layers. The code looks for `truncate` beside those of all kinds.
pub fn of_kind(config: &ConfigFile, width: usize, rope: &Rope) -> Result<Rotary> {
    let rope = Rope {
        truncate: truncates(),
        ..rope.clone()
    };
    with_base(config, width, &rope, 10_000.0)
}

/// The positions that `rope` describes; `base` is the class' own.
fn with_base(config: &ConfigFile, width: usize, rope: &Rope, base: f64) -> Result<Rotary> {
    let base = rope.rope_theta.unwrap_or(base);
    let positions = config.require_size("max_position_embeddings")?;
    // YaRN divides by the base's logarithm.
    rotary(width, 1.0, base, Scaling::None)?;
    rotary(width, 1.0, base, rope.of_decoder([width, positions], base)?)
}

/// Rotary embedding for `fraction` of a head's `width`.
pub fn rotary(width: usize, fraction: f64, base: f64, scaling: Scaling) -> Result<Rotary> {
    let rotated = (width as f64 * fraction) as usize;
    if !(fraction > 0.0 && fraction <= 1.0) || rotated < 2 || !rotated.is_multiple_of(2) {
        return Err(Error::model(format!(
            "expected an even number of rotated values in a head, but found {fraction} of {width}"
        )));
    }
    if !(base > 1.0 && base.is_finite()) {
        return Err(Error::model(format!(
            "expected a rotary base above 1, but found {base}"
        )));
    }
    if matches!(scaling, Scaling::DynamicNtk { positions, .. } if positions == 0 || rotated == 2) {
        return Err(Error::model(format!(
            "expected dynamic scaling from at least one position, with more than 2 rotated values, but found {rotated}"
        )));
    }
    Ok(Rotary {
        width: rotated,
        base,
        scaling,
        growth: None,
    })
}
