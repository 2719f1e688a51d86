use std::collections::HashMap;
use std::fmt::{self, Display};

/// What can go wrong.
#[derive(Debug, Clone, PartialEq)]
pub enum BankError {
    Missing(String),
    Short { needed: u64, held: u64 },
}

impl Display for BankError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BankError::Missing(name) => write!(f, "no account {name:?}"),
            BankError::Short { needed, held } if needed > held => write!(f, "short by {}", needed - held),
            _ => write!(f, "fine"),
        }
    }
}

#[derive(Default)]
struct Bank<'a> {
    accounts: HashMap<&'a str, u64>,
    log: Vec<(usize, char)>,
}

impl<'a> Bank<'a> {
    const FEE: u64 = 1_000;

    fn deposit(&mut self, name: &'a str, amount: u64) -> u64 {
        let held = self.accounts.entry(name).or_insert(0);
        *held += amount;
        self.log.push((amount as usize, '+'));
        *held
    }

    fn withdraw(&mut self, name: &str, amount: u64) -> Result<u64, BankError> {
        let held = self.accounts.get_mut(name).ok_or_else(|| BankError::Missing(name.to_string()))?;
        if *held < amount + Self::FEE {
            return Err(BankError::Short { needed: amount, held: *held });
        }
        *held -= amount;
        Ok(*held)
    }
}

fn largest<T: PartialOrd + Copy>(items: &[T]) -> Option<T>
where
    T: Display,
{
    let mut found = *items.first()?;
    for &item in items.iter().skip(1) {
        if item > found {
            found = item;
        }
    }
    Some(found)
}

/* Blocks /* nest */ here. */
fn main() {
    let mut bank = Bank::default();
    bank.deposit("ann", 5_000);
    let raw = r#"a "raw" text"#;
    let bytes = b"\x00bytes";
    let total: u64 = (0..=3u64).map(|i| i * 2).filter(|i| i % 2 == 0).sum();
    while let Some((amount, sign)) = bank.log.pop() {
        println!("{sign}{amount} {raw} {} {:?}", bytes.len(), largest(&[1.5, total as f64]));
    }
    if let Err(error) = bank.withdraw("bob", 10) {
        eprintln!("{}", error);
    }
    let _grid = [[0i32; 3]; 2];
    unsafe { std::hint::unreachable_unchecked() }
}
