-- Customers and what they spent.
CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    email VARCHAR(120) UNIQUE,
    created TIMESTAMP DEFAULT CURRENT_TIMESTAMP
);

INSERT INTO customers (id, name, email) VALUES
    (1, 'Ann', 'ann@example.org'),
    (2, 'Bob O''Neil', NULL);

WITH spent AS (
    SELECT customer_id, SUM(price * amount) AS total, COUNT(*) AS orders
    FROM orders
    WHERE state IN ('paid', 'sent') AND placed BETWEEN '2024-01-01' AND '2024-12-31'
    GROUP BY customer_id
    HAVING COUNT(*) > 1
)
SELECT c.name, COALESCE(s.total, 0) AS total,
    CASE WHEN s.total > 1000 THEN 'gold' WHEN s.total IS NULL THEN 'new' ELSE 'plain' END AS level,
    ROW_NUMBER() OVER (PARTITION BY c.name ORDER BY s.total DESC) AS place
FROM customers AS c
LEFT JOIN spent AS s ON s.customer_id = c.id
WHERE c.email LIKE '%@example.org' OR NOT EXISTS (SELECT 1 FROM blocked AS b WHERE b.id = c.id)
ORDER BY total DESC, c.name
LIMIT 10 OFFSET 5;

UPDATE customers SET name = UPPER(name) WHERE id = 2;
DELETE FROM customers WHERE created < '2020-01-01';
SELECT name FROM customers UNION ALL SELECT name FROM partners;
CREATE INDEX customers_name ON customers (name);
DROP TABLE IF EXISTS blocked;
