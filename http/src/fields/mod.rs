//! Every field in the request schemas of the imitated APIs, from `fields.json`: read, without effect on results, or refused.
//!
//! These tables decide which fields a request may have, and docs/request-fields.md is made from them. Kivu's own fields are
//! there as well, since a name that is close to a known field is refused. A set's group is the API's name in the
//! documentation, in which `kivu` and `body`, of bodies with the fields of several sets, are not.
//!
//! The first request reads them all, in JSON, since TOML takes several times as long; a set's fields are put together when
//! its first request needs them.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter, ptr,
    sync::{LazyLock, OnceLock},
};

use serde::Deserialize;
use serde_json::value::RawValue;

use kivu::{
    Error, Result,
    json::{Fields, Known, Refused},
    names::similar,
};

/// Bodies with any fields, or with fields that depend on the model.
pub const ANY: &str = "";

/// Sets of fields by group and name.
type Groups = BTreeMap<String, BTreeMap<String, Set>>;

/// Fields of an object. Strings in its lists of fields have several, separated by spaces. Tests and the documentation read
/// `request`, the request's name, as well.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Set {
    /// Other sets, whose fields it has, too.
    uses: Vec<String>,
    read: Vec<String>,
    /// Fields without an effect on results.
    without_effect: Vec<String>,
    /// Fields that would change results, but are not supported: a hint, and the values, as JSON, that ask for nothing.
    refused: BTreeMap<String, Vec<String>>,
    /// Sets of other routes, whose fields are refused here: a client that sends one has the wrong name or the wrong route,
    /// and ignoring it would change results in silence.
    foreign: Vec<String>,
    /// Sets of the body's other objects, whose fields are refused in this one, by the hint that says where they belong.
    misplaced: BTreeMap<String, Vec<String>>,
    /// Objects, or lists of objects, and the sets for their own fields.
    inner: BTreeMap<String, Vec<String>>,
}

/// What fields mean in several APIs, from `names.json`.
#[derive(Default, Deserialize)]
struct Meanings {
    /// Names for the same option, the ones to suggest first.
    #[serde(borrow)]
    same: Vec<&'static str>,
    /// Values of foreign fields that ask for what each route does.
    neutral: BTreeMap<&'static str, Vec<&'static RawValue>>,
}

static MEANINGS: LazyLock<Meanings> =
    LazyLock::new(|| serde_json::from_str(include_str!("names.json")).unwrap_or_default());

/// Objects in which other APIs and clients' libraries have options. Where they are not read, their fields would be ignored.
const NESTS: [&str; 2] = ["extra_body", "parameters"];

/// Foreign fields without an effect on results.
const HARMLESS: [&str; 2] = ["keep_alive", "options"];

static GROUPS: LazyLock<Groups> =
    LazyLock::new(|| serde_json::from_str(include_str!("fields.json")).unwrap_or_default());

/// The fields of all sets, by names such as `Ollama.embed`.
static KNOWN: LazyLock<BTreeMap<String, OnceLock<Known>>> = LazyLock::new(|| {
    let names = GROUPS.iter().flat_map(|(group, sets)| {
        let names = sets.keys();
        names.map(move |name| (format!("{group}.{name}"), OnceLock::new()))
    });
    names.collect()
});

/// The fields of a set in `fields.json`.
pub fn known(set: &str) -> Result<Known> {
    let found = KNOWN.get_key_value(set);
    let found = found.map(|(name, known)| *known.get_or_init(|| all(&GROUPS, [name])));
    found
        .or((set == ANY).then_some(&[]))
        .ok_or_else(|| Error::inference(format!("no set `{set}` in `fields.json`")))
}

/// Fields that change results of some request, or would.
static CHANGES_RESULTS: LazyLock<BTreeSet<&str>> = LazyLock::new(|| {
    let names = |set: &'static Set| {
        let refused = set.refused.keys().map(String::as_str);
        set.read
            .iter()
            .flat_map(|read| read.split(' '))
            .chain(refused)
    };
    GROUPS
        .values()
        .flat_map(|sets| sets.values())
        .flat_map(names)
        .collect()
});

/// The field that a query parameter probably means, if it changes results of some request, or would.
pub fn changes_results(name: &str) -> Option<&'static str> {
    /// Gateways' parameters, such as `token`, `state` and `retry`, are close to fields.
    const MIN_SIMILAR: usize = 6;
    let exact = CHANGES_RESULTS.get(name).copied();
    let mut others = CHANGES_RESULTS.iter().copied();
    exact.or_else(|| (name.len() >= MIN_SIMILAR).then(|| similar(name, &mut others))?)
}

/// The fields of these sets, and of those that they use; the last ones are foreign.
fn all<'a>(groups: &'static Groups, names: impl IntoIterator<Item = &'a String>) -> Known {
    let names: Vec<&String> = names.into_iter().collect();
    let sets = used(groups, &names);
    let mut fields: Vec<&'static Fields> = sets
        .iter()
        .map(|set| &*Box::leak(Box::new(set.fields(groups))))
        .collect();
    let own = || names.iter().filter_map(|name| find(groups, name));
    let foreign: Vec<&String> = own().flat_map(|set| &set.foreign).collect();
    let misplaced = own().flat_map(|set| &set.misplaced).map(|(hint, names)| {
        let names: Vec<&String> = names.iter().collect();
        (hint.as_str(), used(groups, &names))
    });
    let foreign = foreign_fields(&fields, &used(groups, &foreign), misplaced);
    let foreign = Fields {
        foreign: foreign.leak(),
        ..Fields::default()
    };
    fields.push(Box::leak(Box::new(foreign)));
    fields.leak()
}

fn find(groups: &'static Groups, name: &str) -> Option<&'static Set> {
    let (group, own) = name.rsplit_once('.')?;
    groups.get(group)?.get(own)
}

/// These sets, and those that they use, each once.
fn used(groups: &'static Groups, names: &[&String]) -> Vec<&'static Set> {
    let sets = names.iter().filter_map(|name| find(groups, name));
    let with_used = |set: &'static Set| {
        let names: Vec<&String> = set.uses.iter().collect();
        iter::once(set).chain(used(groups, &names))
    };
    let mut found = BTreeSet::new();
    let is_new = |set: &&'static Set| found.insert(ptr::from_ref(*set));
    sets.flat_map(with_used).filter(is_new).collect()
}

/// The fields of other sets that change results, and are not among these; those of misplaced ones with their hint.
fn foreign_fields(
    own: &[&'static Fields],
    others: &[&'static Set],
    misplaced: impl Iterator<Item = (&'static str, Vec<&'static Set>)>,
) -> Vec<Refused> {
    let is_own = |name: &str| {
        own.iter()
            .any(|fields| fields.names().any(|own| own == name))
    };
    let has = |names: &str, name: &str| names.split(' ').any(|one| one == name);
    let embeds = ["dimensions", "embd_normalize", "keep_alive"]
        .into_iter()
        .any(is_own);
    let hint = |name: &str| {
        let mut same = MEANINGS.same.iter().filter(|names| has(names, name));
        match same.find_map(|names| names.split(' ').find(|one| is_own(one))) {
            Some(same) => &*format!("use `{same}`").leak(),
            None if has("prompt_name input_type task_type taskType", name) && embeds => {
                "put the role after the model's name, as in `NAME:query`"
            }
            None => "this route does not read it; leave it out",
        }
    };
    let neutral = |name: &str| -> &'static [&'static str] {
        let found = MEANINGS
            .neutral
            .iter()
            .filter(|(names, _)| has(names, name));
        let values = found.flat_map(|(_, values)| values);
        values.map(|value| value.get()).collect::<Vec<_>>().leak()
    };
    let mut foreign: BTreeMap<&str, Refused> = BTreeMap::new();
    for set in others {
        for refused in set.refused() {
            foreign.entry(refused.name).or_insert(refused);
        }
        for &name in words(&set.read) {
            let (unless, hint) = (neutral(name), hint(name));
            let refused = Refused { name, unless, hint };
            foreign.insert(name, refused);
        }
    }
    for (hint, sets) in misplaced {
        for &name in sets.iter().flat_map(|set| words(&set.read)) {
            let unless = neutral(name);
            foreign.insert(name, Refused { name, unless, hint });
        }
    }
    foreign.extend(NESTS.map(|name| {
        let hint = "put its fields into the body itself";
        let unless = &[];
        (name, Refused { name, unless, hint })
    }));
    foreign.retain(|name, _| !is_own(name) && !HARMLESS.contains(name));
    foreign.into_values().collect()
}

fn words(lists: &'static [String]) -> &'static [&'static str] {
    let words = lists.iter().flat_map(|words| words.split(' '));
    words.collect::<Vec<_>>().leak()
}

impl Set {
    /// Its own refused fields.
    fn refused(&'static self) -> impl Iterator<Item = Refused> {
        self.refused.iter().filter_map(|(name, refused)| {
            let (hint, unless) = refused.split_first()?;
            let unless: Vec<&str> = unless.iter().map(String::as_str).collect();
            Some(Refused {
                name,
                unless: unless.leak(),
                hint,
            })
        })
    }

    /// Its own fields.
    fn fields(&'static self, groups: &'static Groups) -> Fields {
        let inner = self.inner.iter();
        let inner = inner.map(|(field, sets)| (field.as_str(), all(groups, sets)));
        Fields {
            read: words(&self.read),
            without_effect: words(&self.without_effect),
            refused: self.refused().collect::<Vec<_>>().leak(),
            foreign: &[],
            inner: inner.collect::<Vec<_>>().leak(),
        }
    }
}

#[cfg(test)]
mod tests;
