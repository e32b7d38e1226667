//! The types that [`choose`] gives, beside those that llama.cpp gives the same tensors: `golden/mixes.txt`, which says how it
//! was made; `xtask/py/golden_mixes.py` says how to read it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use glim_model::Config;
use glim_model::catalogue::{catalogue, mtp_catalogue};
use glim_model::quantize::{Facts, Mix, Options, TensorFacts, choose};
use glim_quant::GgmlType;

const GOLDEN: &str = include_str!("golden/mixes.txt");

/// One model of the golden, and the types of its tensors in each mix.
#[derive(Debug)]
struct Model {
    name: &'static str,
    facts: Facts,
    has_imatrix: bool,
    tensors: Vec<(String, Vec<u64>)>,
    mixes: BTreeMap<&'static str, BTreeMap<String, GgmlType>>,
}

impl Model {
    /// `model NAME layers=… experts=… gqa=… imatrix=…`
    fn new(words: &[&'static str]) -> Self {
        let field = |name: &str| {
            let mut fields = words.iter().filter_map(|word| word.split_once('='));
            fields.find(|(key, _)| *key == name).unwrap().1
        };
        Self {
            name: words[0],
            facts: Facts {
                n_layers: field("layers").parse().unwrap(),
                n_experts: field("experts").parse().unwrap(),
                n_gqa: field("gqa").parse().unwrap(),
            },
            has_imatrix: field("imatrix") == "true",
            tensors: Vec::new(),
            mixes: BTreeMap::new(),
        }
    }

    fn chosen(&self, mix: Mix) -> BTreeMap<String, GgmlType> {
        let tensors: Vec<TensorFacts<'_>> = self
            .tensors
            .iter()
            .map(|(name, dims)| TensorFacts {
                name,
                ggml_dims: dims,
                ty: GgmlType::F32,
            })
            .collect();
        let options = Options {
            mix: Some(mix),
            has_imatrix: self.has_imatrix,
            ..Options::default()
        };
        let choices = choose(&self.facts, &tensors, &options).unwrap();
        let names = self.tensors.iter().map(|(name, _)| name.clone());
        let types = choices.into_iter().map(|choice| choice.ty);
        names
            .zip(types)
            .filter(|(_, ty)| *ty != GgmlType::F32)
            .collect()
    }
}

/// `blk.{0-3,7}.attn_q_a.weight` as all its names.
fn names(group: &str) -> Vec<String> {
    let Some((start, rest)) = group.split_once('{') else {
        return vec![group.to_owned()];
    };
    let (spans, end) = rest.split_once('}').unwrap();
    let layers = spans.split(',').flat_map(|span| {
        let (first, last) = span.split_once('-').unwrap_or((span, span));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    });
    layers.map(|layer| format!("{start}{layer}{end}")).collect()
}

fn models() -> Vec<Model> {
    let mut models: Vec<Model> = Vec::new();
    for line in GOLDEN.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&'static str> = line.split(' ').collect();
        if words[0] == "model" {
            models.push(Model::new(&words[1..]));
            continue;
        }
        let model = models.last_mut().unwrap();
        if words[0] == "tensor" {
            let dims: Vec<u64> = words[1].split('x').map(|n| n.parse().unwrap()).collect();
            for name in names(words[2]) {
                model.tensors.push((name, dims.clone()));
            }
            continue;
        }
        let types = model.mixes.entry(words[0]).or_default();
        let ty = GgmlType::from_name(words[1]).unwrap();
        types.extend(
            words[2..]
                .iter()
                .flat_map(|group| names(group))
                .map(|name| (name, ty)),
        );
    }
    models
}

#[test]
fn every_mix_gives_every_tensor_the_type_that_llama_cpp_gives_it() {
    let models = models();
    let n_tensors: Vec<(&str, usize)> = models
        .iter()
        .map(|model| (model.name, model.tensors.len()))
        .collect();
    let expected = [
        ("glm-5", 1809),
        ("tiny-glm5", 163),
        ("odd-glm52", 98),
        ("kv-b", 457),
        ("kv-b-8-experts", 457),
        ("kv-b-2-heads", 457),
        ("no-experts-tied", 398),
        ("imatrix", 270),
    ];
    assert_eq!(n_tensors, expected);
    for model in &models {
        for mix in Mix::ALL {
            let golden = model.mixes.get(mix.name()).cloned().unwrap_or_default();
            assert_eq!(golden.is_empty(), *mix == Mix::F32, "{}", mix.name());
            let chosen = model.chosen(*mix);
            let wrong = model.tensors.iter().find_map(|(name, _)| {
                let (found, expected) = (chosen.get(name), golden.get(name));
                (found != expected).then(|| format!("{name}: {found:?}, llama.cpp {expected:?}"))
            });
            assert_eq!(wrong, None, "{} {}", model.name, mix.name());
        }
    }
}

#[test]
fn the_model_called_glm_5_is_glm_5() {
    let (models, config) = (models(), Config::glm5());
    let glm5 = &models[0];
    assert_eq!(glm5.facts, Facts::of_config(&config));
    let ours: BTreeMap<String, Vec<u64>> = catalogue(&config)
        .into_iter()
        .chain(mtp_catalogue(&config))
        .map(|spec| {
            let dims = spec.shape.iter().rev().map(|&n| n as u64).collect();
            (spec.name, dims)
        })
        .collect();
    assert_eq!(
        glm5.tensors.iter().cloned().collect::<BTreeMap<_, _>>(),
        ours
    );
}
