import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;
import java.util.stream.Collectors;

/**
 * Items in stock, by name.
 */
public class Inventory<T extends Comparable<T>> {
    private static final int LIMIT = 1_000;
    private final List<Item<T>> items = new ArrayList<>();

    record Item<K>(String name, K key, double price) {
        Item {
            if (price < 0) {
                throw new IllegalArgumentException("negative price: " + price);
            }
        }
    }

    enum Level { LOW, HIGH }

    @Override
    public String toString() {
        return items.stream().map(Item::name).collect(Collectors.joining(", ", "[", "]"));
    }

    public boolean add(String name, T key, double price) {
        if (items.size() >= LIMIT || name == null || name.isEmpty()) {
            return false;
        }
        items.add(new Item<>(name, key, price));
        return true;
    }

    List<String> names(Predicate<? super Item<T>> wanted) {
        List<String> found = new ArrayList<>();
        for (Item<T> item : items) {
            if (wanted.test(item)) {
                found.add(item.name().toUpperCase());
            }
        }
        return found;
    }

    static int score(Object value) {
        int total = 0;
        for (int i = 0; i < 3; i++) {
            total += switch (value.hashCode() % 3) {
                case 0 -> i * 2;
                case 1, 2 -> {
                    int half = i >> 1;
                    yield half;
                }
                default -> -1;
            };
        }
        return value instanceof String text ? total + text.length() : total;
    }

    public static void main(String[] args) throws Exception {
        var stock = new Inventory<Integer>();
        stock.add("tea", 1, 4.9);
        Map<String, Integer> seen = Map.of("a", 1, "b", 2);
        char mark = seen.containsKey("a") ? '+' : '\'';
        try {
            System.out.println(stock.names(item -> item.price() > 1.0) + " " + mark);
        } finally {
            System.out.printf("%d%n", score(args.length > 0 ? args[0] : "none"));
        }
    }
}
