//! Who averages with whom, step by step, for people: the plan of `shuffle` in a small world and what is proven of it.

use super::{
    text::{count, indented, wrapped},
    world::WorldSize,
};
use crate::exit::UsageError;
use anyhow::{Context, Result};
use paceline_job::script::Target;
use paceline_sync::{
    groups::{Plan, Seating, Terrain, prove},
    program::Span,
};
use serde::Serialize;

/// More steps than this are not listed.
const STEPS_LISTED: usize = 12;

/// Hosts in racks, neighbours together; nothing if no racks are asked for.
pub fn terrain(
    size: WorldSize,
    racks: Option<u32>,
    contended: &[Target],
) -> Result<Option<Terrain>> {
    let Some(racks) = racks else {
        if !contended.is_empty() {
            return Err(UsageError::new("--contended needs --racks or --topology").into());
        }
        return Ok(None);
    };
    let hosts = size.hosts;
    if racks > hosts {
        let text =
            format!("{hosts} hosts cannot fill {racks} racks: lower --racks or raise --hosts");
        return Err(UsageError::new(text).into());
    }
    let mut terrain = Terrain {
        contended_hosts: vec![false; hosts as usize],
        contended_racks: vec![false; racks as usize],
        racks: Vec::new(),
    };
    let all = Span { offset: 0, len: hosts.into() };
    for rack in 0..racks {
        terrain.racks.extend((0..all.part(rack, racks).len).map(|_| rack));
    }
    marked(terrain, contended).map(Some)
}

/// With these links contended.
pub fn marked(mut terrain: Terrain, contended: &[Target]) -> Result<Terrain> {
    let (hosts, racks) =
        (terrain.racks.len(), terrain.racks.iter().max().map_or(0, |last| last + 1));
    terrain.contended_racks.resize(racks as usize, false);
    for target in contended {
        let marks = match target {
            Target::Host(host) => terrain.contended_hosts.get_mut(*host),
            Target::Rack(rack) => terrain.contended_racks.get_mut(*rack),
        };
        let Some(mark) = marks else {
            let text = format!(
                "there is no {target}: hosts are 0 to {}, racks 0 to {}",
                hosts - 1,
                racks - 1
            );
            return Err(UsageError::new(text).into());
        };
        *mark = true;
    }
    Ok(terrain)
}

fn plan(size: WorldSize, terrain: Option<&Terrain>) -> Plan {
    let hosts = size.host_of_each_rank();
    Plan::of(&match terrain {
        Some(terrain) => Seating::on(terrain, &hosts),
        None => Seating::of_hosts(&hosts),
    })
}

/// What a plan of groups looks like to other programs.
#[derive(Serialize)]
pub struct GroupsJson {
    /// By step of a rotation, the ranks of each group.
    steps: Vec<Vec<Vec<u32>>>,
    /// Parts that a chunk is cut into, each a step further than the one before it.
    parts: u32,
    /// Within how many steps what any rank knows reaches every other.
    reach_steps: u32,
    /// After how many steps `contraction` holds.
    period_steps: u32,
    /// What is left of the ranks' disagreement then, at worst.
    contraction: f64,
    /// Whether all hold the exact average then.
    exact: bool,
}

/// The plan, and what is proven of it.
pub fn json(size: WorldSize, terrain: Option<&Terrain>) -> Result<GroupsJson> {
    let plan = plan(size, terrain);
    let proof = prove(&plan).context("this plan does not bring all together; please report it")?;
    let groups = plan.steps().iter().map(|division| division.groups().to_vec());
    Ok(GroupsJson {
        steps: groups.collect(),
        parts: plan.lanes(),
        reach_steps: proof.reach,
        period_steps: proof.period,
        contraction: proof.contraction,
        exact: proof.is_exact(),
    })
}

/// The plan, and what it does.
pub fn words(size: WorldSize, terrain: Option<&Terrain>) -> String {
    let plan = plan(size, terrain);
    let mut listed = String::new();
    for (step, division) in plan.steps().iter().take(STEPS_LISTED).enumerate() {
        listed += &format!("step {step:>2}  {division}\n");
    }
    if plan.steps().len() > STEPS_LISTED {
        listed += "… and so on\n";
    }
    let found = match prove(&plan) {
        Ok(proof) => {
            let left = match proof.is_exact() {
                true => "all hold the exact average".to_string(),
                false => {
                    format!("disagreement is {:.2} of what it was, or less", proof.contraction)
                }
            };
            format!(
                "What any rank knows reaches every other within {}, whichever comes first. After {}, {left}.",
                count(proof.reach.into(), "step"),
                count(proof.period.into(), "step"),
            )
        }
        Err(problem) => {
            format!("This plan does not bring all together: {problem}. Please report it.")
        }
    };
    let parts = match plan.lanes() {
        1 => String::new(),
        lanes => wrapped(&format!(
            "A chunk is cut into {lanes} parts, each a step further than the one before it, so that serving between \
             racks is shared."
        )),
    };
    format!("Groups:\n{}{}{parts}\n", indented(&listed), wrapped(&found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_racks_are_shown_and_proven() {
        let size = WorldSize { ranks: 12, hosts: 12 };
        let terrain = terrain(size, Some(4), &[Target::Rack(1)]).unwrap();
        let shown = words(size, terrain.as_ref());
        assert!(shown.contains("step  0  {1 2} {4 5} {7 8} {10 11} {3 0} {6 9}"), "{shown}");
        assert!(shown.contains("reaches every other within"), "{shown}");
        assert!(words(WorldSize { ranks: 8, hosts: 1 }, None).contains("exact average"));
    }

    #[test]
    fn other_programs_get_the_groups_and_what_is_proven_of_them() {
        let size = WorldSize { ranks: 12, hosts: 12 };
        let terrain = terrain(size, Some(4), &[]).unwrap();
        let told = serde_json::to_value(json(size, terrain.as_ref()).unwrap()).unwrap();
        let first = serde_json::json!([[1, 2], [4, 5], [7, 8], [10, 11], [0, 3, 6, 9]]);
        assert_eq!(told["steps"][0], first);
        assert!(told["reach_steps"].as_u64().unwrap() >= 2, "{told}");
        assert!(told["contraction"].as_f64().unwrap() < 1.0, "{told}");
        assert_eq!(told["exact"], false);
        let flat = json(WorldSize { ranks: 8, hosts: 1 }, None).unwrap();
        assert!(flat.exact && flat.contraction == 0.0);
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        let size = WorldSize { ranks: 4, hosts: 4 };
        assert!(terrain(size, Some(5), &[]).is_err());
        assert!(terrain(size, Some(2), &[Target::Host(4)]).is_err());
        assert_eq!(terrain(size, None, &[]).unwrap(), None);
    }
}
