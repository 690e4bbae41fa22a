//! Resolves languages by any name: the model's own code, an ISO 639 code, or the English name.

use std::collections::{BTreeMap, BTreeSet};

use isolang::Language;

use super::settings::Languages;
use kivu_base::{Error, Result, error::quoted};

/// ISO 639 macrolanguages, and the individual language that a model has for them: NLLB has only individual languages.
const INDIVIDUAL: &str = include_str!("macrolanguages.txt");
/// Common English names that ISO 639 spells differently.
const ENGLISH_NAMES: &str = include_str!("language-names.txt");
/// Longer names are unknown.
const MAX_NAME_BYTES: usize = 256;
/// Minimum similarity for a suggested name.
const MIN_SIMILARITY: f64 = 0.7;

/// Rows of two words.
fn pairs(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    table.lines().filter_map(|row| row.split_once(' '))
}

/// Source or target languages, by all their names.
#[derive(Clone, Debug, Default)]
struct LanguageNames {
    codes: BTreeSet<String>,
    /// The codes by name, in lower case.
    names: BTreeMap<String, BTreeSet<String>>,
}

impl LanguageNames {
    fn new<'a>(codes: impl IntoIterator<Item = &'a String>) -> Self {
        let mut names = Self::default();
        for code in codes {
            names.codes.insert(code.clone());
            for name in names_of(code) {
                names
                    .names
                    .entry(name.to_lowercase())
                    .or_default()
                    .insert(code.clone());
            }
        }
        names
    }

    /// Resolves the language in the request field `field`.
    ///
    /// Refuses unknown and ambiguous names; the error suggests the nearest known name.
    fn find(&self, field: &str, name: &str) -> Result<&str> {
        match self.codes_of(name)[..] {
            [code] => Ok(code),
            [] => Err(self.unknown(field, name)),
            ref codes => Err(Error::invalid(format!(
                "expected one language in `{field}`, but `{}` means {}",
                name.escape_debug(),
                quoted(codes)
            ))),
        }
    }

    /// The codes that a name may mean. Unlike an error, this is cheap: texts name languages, too.
    fn codes_of(&self, name: &str) -> Vec<&str> {
        if let Some(code) = self.codes.get(name) {
            return vec![code];
        }
        if name.len() > MAX_NAME_BYTES {
            return Vec::new();
        }
        let lower = name.trim().to_lowercase();
        let exact = self.names.get(&lower);
        let codes = exact.or_else(|| self.of_same_language(&lower));
        codes
            .into_iter()
            .flatten()
            .map(String::as_str)
            .filter(|code| exact.is_some() || is_covered(&lower, code))
            .collect()
    }

    /// The code that a request means, or the only one if it names none; `None` for unknown and ambiguous names.
    fn chosen(&self, requested: Option<&str>) -> Option<Option<&str>> {
        match requested.map(|name| self.codes_of(name)) {
            None => Some(self.only()),
            Some(codes) => match codes[..] {
                [code] => Some(Some(code)),
                _ => None,
            },
        }
    }

    /// The code of the only language.
    fn only(&self) -> Option<&str> {
        let first = self.codes.first().filter(|_| self.codes.len() == 1);
        first.map(String::as_str)
    }

    /// Codes for the same language as another code, as `pt` for `pt-BR`.
    fn of_same_language(&self, name: &str) -> Option<&BTreeSet<String>> {
        let code = language(name)?.to_639_3();
        let individual = || pairs(INDIVIDUAL).find(|(macrolanguage, _)| *macrolanguage == code);
        self.names
            .get(code)
            .or_else(|| self.names.get(individual()?.1))
    }

    fn unknown(&self, field: &str, name: &str) -> Error {
        /// Maximum characters of a name in an error.
        const MAX_SHOWN: usize = 40;
        let shown: String = name.chars().take(MAX_SHOWN).collect();
        let hint = match self.nearest(&shown) {
            Some((name, code)) if name.replace('-', "_") == code.to_lowercase() => {
                format!("the nearest is `{code}`")
            }
            Some((name, code)) => format!("the nearest is `{code}` ({name})"),
            None if self.codes.len() <= 8 => {
                format!("it has {}", quoted(&self.codes.iter().collect::<Vec<_>>()))
            }
            None => format!(
                "it has {} others, by their codes or English names",
                self.codes.len()
            ),
        };
        Error::invalid(format!(
            "expected a language of the model in `{field}`, but found `{}`",
            shown.escape_debug()
        ))
        .in_field(field)
        .with_hint(hint)
    }

    /// The most similar known name, with its first code.
    fn nearest(&self, name: &str) -> Option<(&str, &String)> {
        let lower = name.trim().to_lowercase();
        let names = self
            .names
            .iter()
            .filter_map(|(name, codes)| Some((name.as_str(), codes.first()?)));
        names
            .map(|known| {
                (
                    strsim::normalized_damerau_levenshtein(&lower, known.0),
                    known,
                )
            })
            .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
            .max_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, known)| known)
    }
}

/// All names for the language with this code.
fn names_of(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::from([code.to_owned(), code.replace('_', "-")]);
    let Some(language) = language(code) else {
        return names;
    };
    let macrolanguages =
        pairs(INDIVIDUAL).filter(|(_, individual)| *individual == language.to_639_3());
    let macrolanguages = macrolanguages.filter_map(|(code, _)| Language::from_639_3(code));
    for language in std::iter::once(language).chain(macrolanguages) {
        names.insert(language.to_639_3().to_owned());
        names.extend(language.to_639_1().map(str::to_owned));
        // Without additions as in "Modern Greek (1453-)".
        names.extend(language.to_name().split(" (").next().map(str::to_owned));
        let english = pairs(ENGLISH_NAMES).filter(|(_, code)| *code == language.to_639_3());
        names.extend(english.map(|(name, _)| name.to_owned()));
    }
    names
}

/// Whether the model's code covers the suffix in a requested name: any country, or a script if the code has none.
fn is_covered(name: &str, code: &str) -> bool {
    let Some((_, suffix)) = name.split_once(['_', '-']) else {
        return true;
    };
    let is_number = suffix.bytes().all(|byte| byte.is_ascii_digit());
    let is_country = suffix.len() == 2 || (suffix.len() == 3 && is_number);
    is_country || (suffix.len() == 4 && !code.contains('_'))
}

/// Parses a code such as `pt`, `por`, `por_Latn` or `pt-BR`, or a common English name.
fn language(name: &str) -> Option<Language> {
    let first = name.split(['_', '-']).next().unwrap_or(name).to_lowercase();
    let by_code = match first.len() {
        2 => Language::from_639_1(&first),
        3 => Language::from_639_3(&first),
        _ => None,
    };
    let english = || pairs(ENGLISH_NAMES).find(|(english, _)| *english == name.to_lowercase());
    by_code.or_else(|| Language::from_639_3(english()?.1))
}

/// Whether labels are language codes: English is among them, and nine of ten are in ISO 639; models also have
/// deprecated codes. Without English, labels such as `pos` and `neg` may be codes by chance.
pub fn are_languages(labels: &[String]) -> bool {
    let known: Vec<Language> = labels.iter().filter_map(|label| language(label)).collect();
    known.contains(&Language::Eng) && known.len() * 10 >= labels.len() * 9
}

/// The code of a language that a classifier identified: short if the label is a code with a script, otherwise the label.
pub fn identified_code(label: &str, labels: &[String]) -> String {
    // Wikipedia's code for Alemannic is ISO 639's for Albanian, which Wikipedia calls `sq`.
    if label == "als" && labels.iter().any(|label| label == "sq") {
        return "gsw".to_owned();
    }
    if label.contains(['_', '-']) {
        ListedLanguage::new(label).code
    } else {
        label.to_owned()
    }
}

/// A language for lists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedLanguage {
    /// ISO 639-1 code if there is one, otherwise the model's code.
    pub code: String,
    /// The English name.
    pub name: String,
}

impl ListedLanguage {
    /// The language with a model's code.
    pub fn new(code: &str) -> Self {
        let Some(language) = language(code) else {
            return Self {
                code: code.to_owned(),
                name: code.to_owned(),
            };
        };
        let individual =
            pairs(INDIVIDUAL).find(|(_, individual)| *individual == language.to_639_3());
        let listed = individual
            .and_then(|(code, _)| Language::from_639_3(code))
            .unwrap_or(language);
        let short = listed
            .to_639_1()
            .map_or_else(|| code.to_owned(), str::to_owned);
        Self {
            code: short,
            name: listed
                .to_name()
                .split(" (")
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

/// Languages in a request, by any name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestedLanguages<'a> {
    /// Source language.
    pub source: Option<&'a str>,
    /// The language to translate to.
    pub target: Option<&'a str>,
}

/// Translation languages, by the model's codes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanguagePair {
    /// Source language.
    pub source: String,
    /// Target language.
    pub target: String,
}

/// A model's languages, by all their names.
#[derive(Clone, Debug)]
pub struct Directions {
    sources: LanguageNames,
    targets: LanguageNames,
    /// Targets per source, if the model does not translate between all its languages.
    pairs: Option<BTreeMap<String, BTreeSet<String>>>,
    /// Whether the model has to be told the source.
    needs_source: bool,
}

impl Directions {
    /// Indexes the languages in a model's settings.
    pub fn new(languages: &Languages) -> Self {
        let mut pairs = None;
        let (sources, targets) = match languages {
            Languages::None => Default::default(),
            Languages::Pair { source, target } => {
                (LanguageNames::new([source]), LanguageNames::new([target]))
            }
            Languages::Prefix { source, targets } => (
                LanguageNames::new([source]),
                LanguageNames::new(targets.keys()),
            ),
            Languages::Tokens { codes, .. } => (
                LanguageNames::new(codes.keys()),
                LanguageNames::new(codes.keys()),
            ),
            Languages::Tags { codes } => (LanguageNames::new(codes), LanguageNames::new(codes)),
            Languages::Instructions {
                pairs: instructions,
            } => {
                let targets = instructions
                    .iter()
                    .map(|(source, targets)| (source, targets.keys().cloned()));
                pairs = Some(
                    targets
                        .map(|(source, targets)| (source.clone(), targets.collect()))
                        .collect(),
                );
                let targets = instructions.values().flat_map(BTreeMap::keys);
                (
                    LanguageNames::new(instructions.keys()),
                    LanguageNames::new(targets),
                )
            }
        };
        Self {
            sources,
            targets,
            pairs,
            needs_source: !matches!(languages, Languages::Tags { .. }),
        }
    }

    /// Whether the model has to be told the source language.
    pub fn needs_source(&self) -> bool {
        self.needs_source
    }

    /// Resolves a request's languages. A side with a single language defaults to it. The source is empty if the model does
    /// not need it, and the request does not name it.
    pub fn find(&self, requested: RequestedLanguages<'_>) -> Result<LanguagePair> {
        let found = match self.named(requested)? {
            (Some(source), Some(target)) => {
                self.check(source, target)?;
                return Ok(LanguagePair {
                    source: source.to_owned(),
                    target: target.to_owned(),
                });
            }
            (None, Some(target)) if !self.needs_source => {
                return Ok(LanguagePair {
                    source: String::new(),
                    target: target.to_owned(),
                });
            }
            (None, None) if !self.needs_source => {
                "expected the language to translate to in `tgt_lang`, but found none"
            }
            (None, None) => {
                "expected the languages of the translation in `src_lang` and `tgt_lang`, but found neither"
            }
            (None, Some(_)) => "expected `src_lang` in addition to `tgt_lang`, but found none",
            (Some(_), None) => "expected `tgt_lang` in addition to `src_lang`, but found none",
        };
        Err(Error::invalid(found))
    }

    /// Refuses languages between which the model does not translate.
    fn check(&self, source: &str, target: &str) -> Result<()> {
        let Some(pairs) = &self.pairs else {
            return Ok(());
        };
        if pairs
            .get(source)
            .is_some_and(|targets| targets.contains(target))
        {
            return Ok(());
        }
        let known = pairs.iter().flat_map(|(source, targets)| {
            targets
                .iter()
                .map(move |target| format!("{source} to {target}"))
        });
        let known: Vec<String> = known.collect();
        Err(Error::invalid(format!(
            "expected languages among {}, but found `{source} to {target}`",
            quoted(&known)
        )))
    }

    /// A request's source and target, as far as it names them or the model has only one.
    pub fn named(&self, requested: RequestedLanguages<'_>) -> Result<(Option<&str>, Option<&str>)> {
        let source = pick(&self.sources, "src_lang", requested.source)?;
        Ok((source, pick(&self.targets, "tgt_lang", requested.target)?))
    }

    /// Resolves a target language to its code.
    pub fn find_target(&self, name: &str) -> Result<&str> {
        self.targets.find("tgt_lang", name)
    }

    /// Whether a name means one of the target languages.
    pub fn has_target(&self, name: &str) -> bool {
        matches!(self.targets.chosen(Some(name)), Some(Some(_)))
    }

    /// A pair for examples and measurements: from English if the model has it.
    pub fn example_pair(&self) -> LanguagePair {
        let first = self.sources.codes.first().map_or("", String::as_str);
        let source = self
            .sources
            .find("src_lang", "english")
            .unwrap_or(first)
            .to_owned();
        let is_usable = |code: &&String| **code != source && self.check(&source, code).is_ok();
        let other = self.targets.codes.iter().find(is_usable);
        let target = other
            .or(self.targets.codes.first())
            .cloned()
            .unwrap_or_default();
        LanguagePair { source, target }
    }

    /// Source codes and target codes.
    pub fn codes(&self) -> [&BTreeSet<String>; 2] {
        [&self.sources.codes, &self.targets.codes]
    }

    /// The source and the target languages for lists, each with a code that a request may name.
    pub fn listed(&self) -> (Vec<ListedLanguage>, Vec<ListedLanguage>) {
        let listed = |names: &LanguageNames| {
            let language = |code: &String| {
                let language = ListedLanguage::new(code);
                // Several scripts for one language have the same short code.
                let is_unique = names
                    .find("", &language.code)
                    .is_ok_and(|found| found == code);
                if is_unique {
                    language
                } else {
                    ListedLanguage {
                        code: code.clone(),
                        ..language
                    }
                }
            };
            names.codes.iter().map(language).collect()
        };
        (listed(&self.sources), listed(&self.targets))
    }

    /// Whether the model translates between two listed languages.
    pub fn translates(&self, source: &ListedLanguage, target: &ListedLanguage) -> bool {
        let pair = RequestedLanguages {
            source: Some(&source.code),
            target: Some(&target.code),
        };
        self.pairs.is_none() || self.has(pair)
    }

    /// Target language count.
    pub fn count(&self) -> usize {
        self.targets.codes.len()
    }

    /// Whether the model has the languages that a request names.
    pub fn has(&self, requested: RequestedLanguages<'_>) -> bool {
        let sides = (
            self.sources.chosen(requested.source),
            self.targets.chosen(requested.target),
        );
        match sides {
            (Some(Some(source)), Some(Some(target))) => self.check(source, target).is_ok(),
            (source, target) => source.is_some() && target.is_some(),
        }
    }
}

fn pick<'a>(
    names: &'a LanguageNames,
    field: &str,
    requested: Option<&str>,
) -> Result<Option<&'a str>> {
    match requested {
        Some(name) => names.find(field, name).map(Some),
        None => Ok(names.only()),
    }
}

/// Whether the language is written without spaces between words.
pub fn is_written_without_spaces(code: &str) -> bool {
    const CODES: [&str; 10] = [
        "zho", "cmn", "yue", "wuu", "jpn", "tha", "lao", "khm", "mya", "bod",
    ];
    language(code).is_some_and(|language| CODES.contains(&language.to_639_3()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(codes: &[&str]) -> LanguageNames {
        LanguageNames::new(
            &codes
                .iter()
                .map(|code| (*code).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    fn nllb() -> LanguageNames {
        names(&[
            "eng_Latn", "fra_Latn", "por_Latn", "arb_Arab", "pes_Arab", "zho_Hans", "zho_Hant",
            "lvs_Latn", "ell_Grek", "nob_Latn", "nno_Latn",
        ])
    }

    #[test]
    fn texts_may_name_any_number_of_unknown_languages() {
        let codes: Vec<String> = ["fr", "de"].map(str::to_owned).into();
        let names = LanguageNames::new(&codes);
        assert_eq!(names.chosen(Some("French")), Some(Some("fr")));
        assert_eq!(
            (names.chosen(Some("frensh")), names.chosen(None)),
            (None, Some(None))
        );
        let long = "fr ".repeat(1_000_000);
        let bytes = allocation_counter::measure(|| assert!(names.find("tgt_lang", &long).is_err()));
        assert!(bytes.bytes_total < 100_000, "{}", bytes.bytes_total);
    }

    #[test]
    fn languages_have_many_names() {
        let cases = [
            ("fra_Latn", "fra_Latn"),
            ("fr", "fra_Latn"),
            ("FR", "fra_Latn"),
            ("fra", "fra_Latn"),
            ("French", "fra_Latn"),
            (" french ", "fra_Latn"),
            ("fra-latn", "fra_Latn"),
            ("pt-BR", "por_Latn"),
            ("ar", "arb_Arab"),
            ("Arabic", "arb_Arab"),
            ("Persian", "pes_Arab"),
            ("farsi", "pes_Arab"),
            ("Latvian", "lvs_Latn"),
            ("el", "ell_Grek"),
            ("Greek", "ell_Grek"),
            ("no", "nob_Latn"),
            ("zho_Hans", "zho_Hans"),
        ];
        for (name, code) in cases {
            assert_eq!(
                nllb()
                    .find("src_lang", name)
                    .map_err(|error| error.to_string()),
                Ok(code),
                "{name}"
            );
        }
        let m2m100 = names(&["en", "fr", "zh", "ar", "fa", "sw", "ceb", "no"]);
        for (name, code) in [
            ("Chinese", "zh"),
            ("zho", "zh"),
            ("ceb", "ceb"),
            ("Cebuano", "ceb"),
            ("swa", "sw"),
        ] {
            assert_eq!(
                m2m100
                    .find("src_lang", name)
                    .map_err(|error| error.to_string()),
                Ok(code),
                "{name}"
            );
        }
        let mbart = names(&["ar_AR", "en_XX", "pt_XX", "sw_KE", "tl_XX", "zh_CN"]);
        for (name, code) in [
            ("en", "en_XX"),
            ("en-XX", "en_XX"),
            ("pt-BR", "pt_XX"),
            ("Tagalog", "tl_XX"),
            ("Chinese", "zh_CN"),
        ] {
            assert_eq!(
                mbart
                    .find("src_lang", name)
                    .map_err(|error| error.to_string()),
                Ok(code),
                "{name}"
            );
        }
        let pair = names(&["pt"]);
        assert_eq!(pair.find("tgt_lang", "Portuguese").unwrap(), "pt");
        assert_eq!(pair.find("tgt_lang", "por_Latn").unwrap(), "pt");
    }

    #[test]
    fn an_unknown_language_is_refused_with_the_nearest() {
        let error = |name: &str| nllb().find("tgt_lang", name).unwrap_err();
        insta::assert_snapshot!(error("Frensh"), @"expected a language of the model in `tgt_lang`, but found `Frensh`; the nearest is `fra_Latn` (french)");
        insta::assert_snapshot!(error("eng_Lat"), @"expected a language of the model in `tgt_lang`, but found `eng_Lat`; the nearest is `eng_Latn`");
        insta::assert_snapshot!(error("Klingon"), @"expected a language of the model in `tgt_lang`, but found `Klingon`; it has 11 others, by their codes or English names");
        insta::assert_snapshot!(error("zh"), @"expected one language in `tgt_lang`, but `zh` means `zho_Hans`, `zho_Hant`");
        let pair = names(&["pt"]);
        insta::assert_snapshot!(pair.find("tgt_lang", "de").unwrap_err(), @"expected a language of the model in `tgt_lang`, but found `de`; it has `pt`");
        assert!(error(&"x".repeat(1_000_000)).to_string().len() < 200);
    }

    #[test]
    fn labels_are_languages_if_nearly_all_are_codes_and_one_is_english() {
        let labels = |labels: &[&str]| {
            labels
                .iter()
                .map(|label| (*label).to_owned())
                .collect::<Vec<_>>()
        };
        assert!(are_languages(&labels(&["en", "fr", "zh", "ceb"])));
        assert!(are_languages(&labels(&["eng_Latn", "fra_Latn"])));
        assert!(!are_languages(&labels(&["pos", "neg", "neu"])));
        assert!(!are_languages(&labels(&["en", "fr", "x", "y"])));
        assert_eq!(identified_code("als", &labels(&["sq", "als"])), "gsw");
        assert_eq!(identified_code("als", &labels(&["als", "en"])), "als");
        assert_eq!(identified_code("zho_Hans", &[]), "zh");
    }

    #[test]
    fn the_only_language_of_a_side_is_its_default() {
        let codes: BTreeMap<String, i64> = [("en".to_owned(), 7), ("fr".to_owned(), 8)].into();
        let many = Directions::new(&Languages::Tokens {
            codes,
            side: super::super::TokenSide::Before,
            target: Default::default(),
        });
        let find = |source, target| {
            many.find(RequestedLanguages { source, target })
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            find(Some("English"), Some("fr")),
            Ok(LanguagePair {
                source: "en".into(),
                target: "fr".into()
            })
        );
        insta::assert_snapshot!(find(None, None).unwrap_err(), @"expected the languages of the translation in `src_lang` and `tgt_lang`, but found neither");
        insta::assert_snapshot!(find(None, Some("fr")).unwrap_err(), @"expected `src_lang` in addition to `tgt_lang`, but found none");
        insta::assert_snapshot!(find(Some("en"), None).unwrap_err(), @"expected `tgt_lang` in addition to `src_lang`, but found none");
        let tags = Directions::new(&Languages::Tags {
            codes: ["en", "pt"].map(str::to_owned).into(),
        });
        let to = |source, target| tags.find(RequestedLanguages { source, target });
        assert_eq!(
            to(None, Some("Portuguese")).unwrap(),
            LanguagePair {
                source: String::new(),
                target: "pt".into()
            }
        );
        assert_eq!(to(Some("en"), Some("pt")).unwrap().source, "en");
        insta::assert_snapshot!(to(None, None).unwrap_err(), @"expected the language to translate to in `tgt_lang`, but found none");
        insta::assert_snapshot!(to(Some("en"), None).unwrap_err(), @"expected `tgt_lang` in addition to `src_lang`, but found none");
        insta::assert_snapshot!(to(Some("de"), Some("pt")).unwrap_err(), @"expected a language of the model in `src_lang`, but found `de`; it has `en`, `pt`");
        let pair = Directions::new(&Languages::Pair {
            source: "en".into(),
            target: "pt".into(),
        });
        assert_eq!(
            pair.find(RequestedLanguages::default()).unwrap().target,
            "pt"
        );
        assert!(pair.has(RequestedLanguages {
            source: Some("English"),
            target: None
        }));
        assert!(!pair.has(RequestedLanguages {
            source: Some("pt"),
            target: None
        }));
    }

    #[test]
    fn the_example_pair_begins_with_english() {
        let directions = |codes: &[&str]| {
            let codes = codes.iter().map(|code| ((*code).to_owned(), 7)).collect();
            Directions::new(&Languages::Tokens {
                codes,
                side: super::super::TokenSide::Before,
                target: Default::default(),
            })
        };
        let pair = directions(&["ace_Arab", "eng_Latn", "fra_Latn"]).example_pair();
        assert_eq!(
            (pair.source.as_str(), pair.target.as_str()),
            ("eng_Latn", "ace_Arab")
        );
        let pair = directions(&["de", "fr"]).example_pair();
        assert_eq!((pair.source.as_str(), pair.target.as_str()), ("de", "fr"));
    }
}
