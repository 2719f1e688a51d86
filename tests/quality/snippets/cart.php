<?php

declare(strict_types=1);

namespace Shop\Cart;

use InvalidArgumentException;

interface HasTotal
{
    public function total(): float;
}

enum State: string
{
    case Open = 'open';
    case Paid = 'paid';
}

/* A cart knows
   its lines. */
final class Cart implements HasTotal
{
    public const LIMIT = 100;
    private array $lines = [];

    public function __construct(private readonly string $owner, protected ?State $state = null)
    {
        $this->state ??= State::Open;
    }

    public function add(string $name, int $count = 1, float ...$prices): static
    {
        if ($count < 1 || count($this->lines) >= self::LIMIT) {
            throw new InvalidArgumentException("bad line: {$name} x $count");
        }
        foreach ($prices as $i => $price) {
            $this->lines[$name . $i] = ['count' => $count, 'price' => $price];
        }
        return $this;
    }

    public function total(): float
    {
        return array_sum(array_map(fn (array $line): float => $line['count'] * $line['price'], $this->lines));
    }

    public static function describe(mixed $value): string
    {
        return match (true) {
            $value === null => 'nothing',
            is_int($value), is_float($value) => (string) $value,
            default => $value instanceof self ? $value->owner : "other",
        };
    }
}

$cart = (new Cart('ann'))->add('tea', 2, 4.9, 5.5);
for ($i = 0; $i < 3; $i++) {
    echo $i % 2 === 0 ? "even\n" : 'odd', PHP_EOL;
}
try {
    printf("%.2f %s\n", $cart->total(), Cart::describe($cart));
} catch (\Exception $e) {
    echo $e->getMessage();
} finally {
    unset($cart); // gone
}
