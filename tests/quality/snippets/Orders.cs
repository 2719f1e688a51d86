using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading.Tasks;

namespace Shop.Orders
{
    public enum State { Open, Paid = 2, Sent }

    public record Line(string Name, int Count, decimal Price);

    public interface IOrder<out T> where T : class
    {
        T Owner { get; }
        event EventHandler<State> Changed;
    }

    /* Orders add up
       their lines. */
    public sealed class Order : IOrder<string>
    {
        private readonly List<Line> _lines = new List<Line>();

        public string Owner { get; private set; } = "nobody";
        public State State { get; init; }
        public event EventHandler<State> Changed = delegate { };
        public decimal Total => _lines.Sum(line => line.Count * line.Price);

        public Line this[int index]
        {
            get { return _lines[index]; }
            set { _lines[index] = value ?? throw new ArgumentNullException(nameof(value)); }
        }

        public Order Add(string name, int count = 1, params decimal[] prices)
        {
            if (count < 1 || string.IsNullOrEmpty(name))
            {
                throw new ArgumentException($"bad line: {name} x {count:N2}");
            }
            foreach (var price in prices)
            {
                _lines.Add(new Line(name, count, price));
            }
            Changed?.Invoke(this, State);
            return this;
        }

        public static async Task<int> CountAsync(IEnumerable<Order> orders)
        {
            await Task.Delay(1);
            var query = from order in orders where order.Total > 1.5m orderby order.Owner select order;
            return query.Count();
        }

        public string Describe(object value)
        {
            switch (value)
            {
                case int n when n > 0:
                    return @"C:\orders\" + n;
                case null:
                    return "";
                default:
                    return value is string text ? text : '\n'.ToString();
            }
        }
    }

    public static class Program
    {
        public static async Task Main(string[] args)
        {
            var order = new Order { State = State.Paid }.Add("tea", 2, 4.90m);
            for (int i = 0; i < args.Length; i++)
            {
                Console.WriteLine(order.Describe(args[i]));
            }
            Console.WriteLine(await Order.CountAsync(new[] { order }));
        }
    }
}
