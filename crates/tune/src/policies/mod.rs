//! The policies that come with Paceline, by the names that commands know them by. Each file is one of them; all are state
//! machines from moments to wishes, so that workers that see the same want the same.

mod averaging;
mod goodput;
mod interference;
mod memory;
mod noise_scale;
mod schedule;
mod spot;

pub use averaging::Averaging;
pub use goodput::Goodput;
pub use interference::Interference;
pub use noise_scale::{NoiseScale, Rule};
pub use schedule::Schedule;
pub use spot::Spot;

use paceline_sync::policy::Policy;
use std::{collections::BTreeMap, str::FromStr};

/// The names that [`parse`] knows.
pub const NAMES: [&str; 6] =
    ["noise_scale", "goodput", "schedule", "interference", "averaging", "spot"];

/// A policy that cannot be made of what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Use one of the names listed, or a class of your own as `module:Class`.
    #[error(
        "`{0}` is no policy of Paceline's; known: noise_scale, goodput, schedule, interference, averaging, spot"
    )]
    Unknown(String),
    /// Write arguments as `name:key=value,key=value`.
    #[error("policy {policy}: {problem}")]
    Argument {
        /// Which one.
        policy: &'static str,
        /// What is wrong with its arguments.
        problem: String,
    },
}

/// A policy from text such as `noise_scale:most=256,rule=sqrt`. `read` reads the file that a schedule names.
pub fn parse(
    text: &str,
    read: impl Fn(&str) -> Result<String, String>,
) -> Result<Box<dyn Policy>, PolicyError> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let name = NAMES
        .into_iter()
        .find(|known| *known == name)
        .ok_or_else(|| PolicyError::Unknown(name.to_string()))?;
    let wrong = |problem: String| PolicyError::Argument { policy: name, problem };
    if name == "schedule" {
        let text = read(rest).map_err(wrong)?;
        return Ok(Box::new(Schedule::parse(&text).map_err(wrong)?));
    }
    let mut arguments = Arguments::parse(rest).map_err(wrong)?;
    let policy: Result<Box<dyn Policy>, String> = match name {
        "noise_scale" => {
            NoiseScale::from_arguments(&mut arguments).map(|policy| Box::new(policy) as _)
        }
        "goodput" => Goodput::from_arguments(&mut arguments).map(|policy| Box::new(policy) as _),
        "averaging" => {
            Averaging::from_arguments(&mut arguments).map(|policy| Box::new(policy) as _)
        }
        "spot" => Spot::from_arguments(&mut arguments).map(|policy| Box::new(policy) as _),
        _ => Interference::from_arguments(&mut arguments).map(|policy| Box::new(policy) as _),
    };
    policy.and_then(|policy| arguments.end().map(|()| policy)).map_err(wrong)
}

/// Where launchers say which policies a program is to have.
pub const VARIABLE: &str = "PACELINE_POLICY";

/// Several, with `;` between them, as [`VARIABLE`] has them.
pub fn parse_all(
    text: &str,
    read: impl Fn(&str) -> Result<String, String>,
) -> Result<Vec<Box<dyn Policy>>, PolicyError> {
    let texts = text.split(';').map(str::trim).filter(|text| !text.is_empty());
    texts.map(|text| parse(text, &read)).collect()
}

/// What follows a policy's name.
struct Arguments(BTreeMap<String, String>);

impl Arguments {
    fn parse(text: &str) -> Result<Arguments, String> {
        let pairs = text.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("`{pair}` is no argument; write key=value"))?;
            Ok((key.trim().to_string(), value.trim().to_string()))
        });
        pairs.collect::<Result<_, String>>().map(Arguments)
    }

    /// One that may be left out.
    fn take<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, String> {
        let Some(value) = self.0.remove(key) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| format!("`{value}` is no value for `{key}`"))
    }

    /// A number above 0 that may be left out.
    fn take_number<T: FromStr + PartialOrd + Default>(
        &mut self,
        key: &str,
    ) -> Result<Option<T>, String> {
        let number = self.take(key)?;
        // What cannot be compared is no number either.
        match number.as_ref().is_none_or(|number| *number > T::default()) {
            true => Ok(number),
            false => Err(format!("`{key}` must be above 0")),
        }
    }

    /// What was not asked for is wrong.
    fn end(&self) -> Result<(), String> {
        self.0.keys().next().map_or(Ok(()), |key| Err(format!("there is no argument `{key}`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let read = |_: &str| Err("no such file".to_string());
        parse(text, read).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn policies_are_made_of_what_is_written_and_the_rest_is_refused_by_name() {
        for text in [
            "noise_scale:most=64,rule=sqrt",
            "noise_scale:most=64",
            "goodput:most=512",
            "interference",
            "averaging:at=8,mode=pairs",
            "spot:file=/run/revoked",
        ] {
            assert_eq!(problem(text), "", "{text}");
        }
        assert!(problem("luck").contains("known: noise_scale"));
        assert!(problem("noise_scale").contains("most"));
        assert!(problem("noise_scale:most=64,rule=luck").contains("`luck` is no value for `rule`"));
        assert!(problem("noise_scale:most=0").contains("`most` must be above 0"));
        assert!(problem("interference:share=NaN").contains("`share` must be above 0"));
        assert!(problem("interference:share=7").contains("`share` is a part of the usual speed"));
        assert!(problem("interference:window=0").contains("`window` must be above 0"));
        assert!(problem("goodput:most=64,color=red").contains("no argument `color`"));
        assert!(problem("goodput:64").contains("key=value"));
        assert!(problem("averaging:at=8,mode=luck").contains("no mode `luck`; choose one of sync"));
        assert!(problem("interference:strategies=ring+luck").contains("`luck` is no strategy"));
        assert!(problem("schedule:file.toml").contains("no such file"));
        assert!(
            NAMES.iter().all(|name| PolicyError::Unknown(String::new()).to_string().contains(name))
        );
    }
}
