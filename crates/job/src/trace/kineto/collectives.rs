//! Which collective a kernel of NCCL or an annotation of Gloo was. The fields that say so are on the kernel in newer
//! files, on the operator around its launch in older ones, and sometimes in nothing but names.

use super::{
    device::launch_of,
    gather::{Class, Gathered},
    nesting::Nesting,
};
use crate::{
    Dtype, Rank,
    trace::{
        Collective, Kind, Span, SpanId,
        chrome::{Fields, Header},
        problems::Problems,
        words,
    },
};
use serde_json::Value;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// Groups whose members a file says.
#[derive(Debug, Default)]
pub struct Groups {
    members: HashMap<String, Vec<Rank>>,
    world: Option<u32>,
}

impl Groups {
    pub fn of(header: &Header) -> Groups {
        let configured = header.fields.get("distributedInfo").and_then(|it| it.get("pg_config"));
        let groups = configured.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let members = groups.iter().filter_map(|group| {
            let name = group.get("pg_name")?.as_str()?.to_owned();
            Some((name, ranks(group.get("ranks")?)?))
        });
        Groups { members: members.collect(), world: header.world() }
    }

    /// In order; empty for all workers, or if nobody says.
    fn members(&self, fields: &Fields, group: &str) -> Vec<Rank> {
        let size = integer(fields.get("Group size")).and_then(|size| usize::try_from(size).ok());
        let given = fields.get("Process Group Ranks").and_then(ranks);
        // Long lists are cut short in the file.
        let given = given.filter(|ranks| size.is_none_or(|size| size == ranks.len()));
        let members = given.or_else(|| self.members.get(group).cloned()).unwrap_or_default();
        let everybody = self.world.is_some_and(|world| world as usize == members.len());
        if everybody { Vec::new() } else { members }
    }
}

/// Turn spans into collectives.
pub fn name(
    gathered: &Gathered,
    nesting: &Nesting,
    groups: &Groups,
    spans: &mut [Span],
    problems: &mut Problems,
) {
    let mut posts = Posts::of(gathered);
    for (at, (raw, note)) in gathered.raw.iter().zip(&gathered.notes).enumerate() {
        let kernel = note.class == Class::Kernel
            && ["ncclKernel", "ncclDevKernel"].iter().any(|prefix| raw.name.starts_with(prefix));
        let annotation = note.class == Class::Annotation && raw.name.starts_with("gloo:");
        if !kernel && !annotation {
            continue;
        }
        let mut sources: Vec<(&str, &Fields)> = Vec::new();
        sources.extend(note.collective.as_deref().map(|fields| (&*raw.name, fields)));
        if let Some(call) = launch_of(spans, at) {
            let around = nesting.ancestors(call);
            sources.extend(around.filter_map(|at| {
                Some((&*gathered.raw[at].name, gathered.notes[at].collective.as_deref()?))
            }));
        }
        if annotation
            && let Some(post) =
                words::operation(&raw.name).and_then(|word| posts.next(word, raw.begin))
        {
            spans[at].after.push(SpanId(post as u32));
            // Gloo's thread begins while this one is still handing over.
            spans[post].kind = Kind::Launch;
            sources.extend(
                gathered.notes[post]
                    .collective
                    .as_deref()
                    .map(|it| (&*gathered.raw[post].name, it)),
            );
        }
        match collective(&raw.name, &sources, groups, problems) {
            Some(collective) => spans[at].kind = Kind::Collective(Box::new(collective)),
            None => problems.add(
                "a kernel of NCCL does not say which collective it is; it is taken for computation",
            ),
        }
    }
}

/// What the sources say, the first to say it.
fn collective(
    name: &str,
    sources: &[(&str, &Fields)],
    groups: &Groups,
    problems: &mut Problems,
) -> Option<Collective> {
    let field = |key: &str| {
        let mut found = sources.iter().filter_map(|(_, fields)| fields.get(key));
        found.find(|value| !value.is_null() && value.as_str() != Some(""))
    };
    // A kernel that sends and receives may be part of an exchange of all: what surrounds it knows better.
    let words = field("Collective name").and_then(Value::as_str).and_then(words::operation);
    let around = || sources.iter().rev().find_map(|(name, _)| words::operation(name));
    let operation = words.or_else(around).or_else(|| words::operation(name))?;
    let mut dtype = field("dtype").and_then(Value::as_str).and_then(words::dtype);
    let mut elements = integer(field("In msg nelems")).and_then(|it| u64::try_from(it).ok());
    if elements.is_none()
        && let Some((shapes, given)) = field("Input Dims").and_then(first_shapes)
    {
        elements = Some(shapes);
        let types = field("Input type").and_then(Value::as_array);
        dtype = dtype.or_else(|| words::dtype(types?.get(given)?.as_str()?));
    }
    let unsized_type = field("dtype").and_then(Value::as_str);
    let bytes = match (elements, dtype) {
        (Some(elements), Some(dtype)) => elements.saturating_mul(dtype.size() as u64),
        // Types that we do not have are those of one byte an element.
        (Some(elements), None) if unsized_type.is_some_and(|it| it.contains('8')) => elements,
        _ if operation == "barrier" => 0,
        _ => {
            problems.add("a collective does not say how much it carries");
            0
        }
    };
    let group = field("Process Group Name").map(plain_text).unwrap_or_default();
    let first = sources.first().map(|(_, fields)| *fields);
    let with_ranks = sources.iter().map(|(_, fields)| *fields);
    let fields = with_ranks.clone().find(|it| it.contains_key("Process Group Ranks")).or(first);
    Some(Collective {
        operation: operation.into(),
        members: fields.map(|it| groups.members(it, &group)).unwrap_or_default(),
        group: group.into(),
        sequence: integer(field("Seq")).and_then(|it| u64::try_from(it).ok()),
        tensor: None,
        bytes,
        dtype: dtype.or_else(|| kernel_dtype(name).filter(|_| elements.is_none())),
        priority: 0,
    })
}

/// Operators that hand something over to Gloo's threads, by our word for it.
struct Posts {
    waiting: HashMap<&'static str, VecDeque<(usize, crate::trace::Stamp)>>,
}

impl Posts {
    fn of(gathered: &Gathered) -> Posts {
        let mut waiting: HashMap<_, VecDeque<_>> = HashMap::new();
        for (at, raw) in gathered.raw.iter().enumerate() {
            if gathered.notes[at].class == Class::Operator
                && let Some(name) = raw.name.strip_prefix("c10d::")
                && let Some(word) = words::operation(name)
            {
                waiting.entry(word).or_default().push_back((at, raw.begin));
            }
        }
        Posts { waiting }
    }

    /// The oldest that nothing has come of yet, if it was before `begin`.
    fn next(&mut self, word: &str, begin: crate::trace::Stamp) -> Option<usize> {
        let queue = self.waiting.get_mut(word)?;
        queue.pop_front_if(|(_, posted)| *posted <= begin).map(|(at, _)| at)
    }
}

fn plain_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn integer(value: Option<&Value>) -> Option<i64> {
    let value = value?;
    value.as_i64().or_else(|| value.as_str()?.trim().parse().ok())
}

/// Ranks as a list, or as text of a list.
fn ranks(value: &Value) -> Option<Vec<Rank>> {
    let parsed: Value;
    let list = match value.as_str() {
        Some(text) => {
            parsed = serde_json::from_str(text).ok()?;
            parsed.as_array()?
        }
        None => value.as_array()?,
    };
    let rank = |value: &Value| Some(Rank(u32::try_from(value.as_u64()?).ok()?));
    list.iter().map(rank).collect::<Option<Vec<_>>>().filter(|ranks| !ranks.is_empty())
}

/// Elements of the first argument that has a shape, and its place.
fn first_shapes(value: &Value) -> Option<(u64, usize)> {
    let shapes = value.as_array()?;
    let place =
        shapes.iter().position(|shape| shape.as_array().is_some_and(|it| !it.is_empty()))?;
    Some((elements(&shapes[place], 0)?, place))
}

/// A shape, or a list of shapes. Their nesting is bounded by the parser.
fn elements(shape: &Value, depth: u32) -> Option<u64> {
    let shape = shape.as_array()?;
    if depth < 2 && shape.iter().any(Value::is_array) {
        return shape
            .iter()
            .map(|it| elements(it, depth + 1))
            .try_fold(0_u64, |sum, it| sum.checked_add(it?));
    }
    shape.iter().try_fold(1_u64, |product, size| product.checked_mul(size.as_u64()?))
}

/// The type in a kernel's name: `…_Sum_float(…)`, `…_Sum_f32_RING_LL(…)`.
fn kernel_dtype(name: &str) -> Option<Dtype> {
    let name: Arc<str> = name.split('(').next()?.into();
    let last = name.split("_Sum_").nth(1)?;
    words::dtype(last).or_else(|| words::dtype(last.split('_').next()?))
}
